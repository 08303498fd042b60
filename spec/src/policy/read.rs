//! Opening the configuration file. It can widen the sandbox, so it must be its owner's alone: whoever could
//! write or replace it would decide what a turn may do. Symbolic links are followed, because people keep such
//! files elsewhere and link them; what is judged is where they lead.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::error::{Error, Place};
use super::layer::Layer;
use super::resolve::{Context, resolve};
use super::value::expand;
use super::{CONFIG_FILE, Policy};
use crate::origin::{Origin, Source, Sourced};

/// The largest configuration file that is read, in bytes.
pub const MAX_FILE: u64 = 1 << 20;

const GROUP_OR_OTHERS_WRITE: u32 = 0o022;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The whole policy: reads the configuration file that a layer names (`--config`, `CODEOID_SANDBOX_CONFIG`), or
/// else `~/.codeoid/config.json` where there is one, and puts it below the two layers.
///
/// # Errors
/// As [`read_config`], [`Layer::from_file`] and [`resolve`]; a file that was named and is not there.
pub fn load(flags: Layer, environment: Layer, context: &Context) -> Result<Policy, Error> {
    let named = flags.config.as_ref().or(environment.config.as_ref());
    let path = match named {
        Some(named) if named.value.starts_with("~") && !context.home.is_absolute() => {
            return Err(Error::NoHome { place: named.origin.to_string() });
        }
        Some(named) => expand(&named.value, &context.home, &context.cwd),
        // Joined to no home it would be a file of the current directory, which is the agent's to write.
        None if !context.home.is_absolute() => return resolve(flags, environment, None, context),
        None => context.home.join(CONFIG_FILE),
    };
    let file = match (read_config(&path)?, named) {
        (Some((path, text)), _) => Some(Layer::from_file(&path, &text)?),
        (None, Some(Sourced { origin, .. })) => {
            return Err(Error::FileMissing { file: path, place: place(origin) });
        }
        (None, None) => None,
    };
    resolve(flags, environment, file, context)
}

fn place(origin: &Origin) -> Place {
    let name = origin.name.clone().unwrap_or_default();
    if origin.source == Source::Environment { Place::Variable(name) } else { Place::Flag(name) }
}

/// The configuration file's real path and text, or `None` where there is no such file.
///
/// # Errors
/// It is not a regular file, belongs neither to the caller nor to root, can be written or replaced by others,
/// is larger than [`MAX_FILE`], is not UTF-8, cannot be read, or lies behind a link that leads nowhere.
pub fn read_config(path: &Path) -> Result<Option<(PathBuf, String)>, Error> {
    // Without O_NONBLOCK a FIFO would hold us until somebody writes to it (fifo(7)).
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return absent(path),
        // open(2) of a socket.
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENXIO as i32) => {
            return Err(Error::FileKind { file: path.to_owned() });
        }
        Err(source) => return Err(Error::FileUnreadable { file: path.to_owned(), source }),
    };
    let unreadable = |source| Error::FileUnreadable { file: path.to_owned(), source };
    let real = path.canonicalize().map_err(unreadable)?;
    judge_file(&real, &file.metadata().map_err(unreadable)?, nix::unistd::geteuid().as_raw())?;
    // Both the link and what it leads to can be replaced by whoever can write a directory above them.
    for start in [path, &real] {
        judge_directories(path, start)?;
    }
    let text = text(&real, &file)?;
    Ok(Some((real, text)))
}

/// There is nothing at `path`: rightly so, or because a link on the way leads nowhere? The latter would be a
/// policy that got lost.
fn absent(path: &Path) -> Result<Option<(PathBuf, String)>, Error> {
    for ancestor in path.ancestors() {
        match ancestor.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() && ancestor.metadata().is_err() => {
                return Err(Error::FileDangling { file: path.to_owned(), link: ancestor.to_owned() });
            }
            Ok(_) => break,
            Err(_) => {}
        }
    }
    Ok(None)
}

fn judge_file(file: &Path, metadata: &Metadata, caller: u32) -> Result<(), Error> {
    if !metadata.is_file() {
        return Err(Error::FileKind { file: file.to_owned() });
    }
    let owner = metadata.uid();
    if owner != caller && owner != 0 {
        return Err(Error::FileOwner { file: file.to_owned(), owner, caller });
    }
    if metadata.mode() & GROUP_OR_OTHERS_WRITE != 0 {
        return Err(Error::FileWritable { file: file.to_owned(), mode: metadata.mode() & 0o7777 });
    }
    Ok(())
}

/// A directory that everybody can write lets everybody put another file there, unless it is sticky.
fn judge_directories(file: &Path, start: &Path) -> Result<(), Error> {
    for directory in start.ancestors().skip(1).filter(|directory| !directory.as_os_str().is_empty()) {
        let metadata =
            directory.metadata().map_err(|source| Error::FileUnreadable { file: file.to_owned(), source })?;
        let mode = metadata.mode();
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Err(Error::DirectoryWritable {
                file: file.to_owned(),
                directory: directory.to_owned(),
                mode: mode & 0o7777,
            });
        }
    }
    Ok(())
}

fn text(path: &Path, file: &File) -> Result<String, Error> {
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too large; its size alone may be a lie (procfs).
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| Error::FileUnreadable { file: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::FileTooLarge { file: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Error::FileEncoding { file: path.to_owned(), line: number(line), column: number(column) }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            fs::create_dir(home.0.path().join(".codeoid")).unwrap();
            home
        }

        fn path(&self) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(CONFIG_FILE)
        }

        fn write(&self, text: impl AsRef<[u8]>, mode: u32) -> PathBuf {
            fs::write(self.path(), text).unwrap();
            fs::set_permissions(self.path(), Permissions::from_mode(mode)).unwrap();
            self.path()
        }

        fn load(&self, flags: Layer) -> Result<Policy, Error> {
            let context = Context { cwd: "/".into(), home: self.0.path().to_owned() };
            load(flags, Layer::default(), &context)
        }
    }

    #[test]
    fn an_absent_file_is_none_unless_it_was_named() {
        let home = Home::new();
        assert!(read_config(&home.path()).unwrap().is_none());
        assert!(read_config(&home.0.path().join("no/such/directory")).unwrap().is_none());
        assert_eq!(home.load(Layer::default()).unwrap().config, None);
        let mut flags = Layer::default();
        flags.flag(crate::policy::Key::Config, home.path()).unwrap();
        let error = home.load(flags).unwrap_err();
        assert!(matches!(&error, Error::FileMissing { place: Place::Flag(flag), .. } if flag == "--config"));
    }

    #[test]
    fn without_a_home_no_file_of_the_workspace_is_read() {
        let current = std::env::current_dir().unwrap();
        let workspace = tempfile::tempdir_in(&current).unwrap();
        let relative = workspace.path().strip_prefix(&current).unwrap().to_owned();
        fs::create_dir(workspace.path().join(".codeoid")).unwrap();
        fs::write(relative.join(CONFIG_FILE), "not even JSON").unwrap();
        for home in [relative, PathBuf::new()] {
            let context = Context { cwd: "/".into(), home };
            assert_eq!(load(Layer::default(), Layer::default(), &context).unwrap().config, None);
        }
    }

    #[test]
    fn the_file_is_read_and_named_by_its_real_path() {
        let home = Home::new();
        let file = home.write(r#"{"sandbox": {"home": "hidden"}}"#, 0o644);
        let policy = home.load(Layer::default()).unwrap();
        assert_eq!(policy.home.value, crate::policy::Home::Hidden);
        assert_eq!(policy.config, Some(file.clone()));
        let dotfiles = home.0.path().canonicalize().unwrap().join("dotfiles.json");
        fs::rename(&file, &dotfiles).unwrap();
        symlink("../dotfiles.json", &file).unwrap();
        assert_eq!(home.load(Layer::default()).unwrap().config, Some(dotfiles));
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        for mode in [0o664, 0o646, 0o666, 0o620] {
            let home = Home::new();
            let file = home.write("{}", mode);
            let error = read_config(&file).unwrap_err();
            assert!(matches!(error, Error::FileWritable { mode: found, .. } if found == mode), "{error}");
            assert_eq!(error.hint(), Some(format!("chmod go-w {}", file.display())));
            fs::set_permissions(&file, Permissions::from_mode(mode & !0o022)).unwrap();
            read_config(&file).unwrap().unwrap();
        }
    }

    #[test]
    fn a_directory_that_all_can_write_is_refused_unless_it_is_sticky() {
        let home = Home::new();
        let file = home.write("{}", 0o600);
        let directory = file.parent().unwrap();
        fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
        let error = read_config(&file).unwrap_err();
        assert_eq!(error.hint(), Some(format!("chmod o-w {}", directory.display())));
        // The link's own directory is safe, what it leads to is not.
        let link = home.0.path().join("link");
        symlink(&file, &link).unwrap();
        assert!(matches!(read_config(&link), Err(Error::DirectoryWritable { .. })));
        fs::set_permissions(directory, Permissions::from_mode(0o1777)).unwrap();
        read_config(&file).unwrap().unwrap();
    }

    #[test]
    fn somebody_elses_file_is_refused() {
        let home = Home::new();
        let file = home.write("{}", 0o644);
        let metadata = fs::metadata(&file).unwrap();
        let owner = metadata.uid();
        judge_file(&file, &metadata, owner).unwrap();
        let stranger = owner + 1;
        if owner == 0 {
            judge_file(&file, &metadata, stranger).expect("root's file is everybody's");
            chown(&file, Some(1), None).unwrap();
            let error = read_config(&file).unwrap_err();
            assert!(matches!(error, Error::FileOwner { owner: 1, caller: 0, .. }), "{error}");
            assert_eq!(error.hint(), Some(format!("chown 0 {}", file.display())));
        } else {
            assert!(matches!(judge_file(&file, &metadata, stranger), Err(Error::FileOwner { .. })));
        }
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_at_once() {
        let home = Home::new();
        let path = home.path();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let fifo = path.clone();
        std::thread::spawn(move || sender.send(read_config(&fifo)));
        let answer =
            receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("it waits for a writer");
        assert!(matches!(answer, Err(Error::FileKind { .. })));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(read_config(&path), Err(Error::FileKind { .. })));
        fs::remove_dir(&path).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(read_config(&path), Err(Error::FileKind { .. })));
        assert!(matches!(read_config(Path::new("/dev/null")), Err(Error::FileKind { .. })));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_a_policy_that_got_lost() {
        let home = Home::new();
        symlink("/nonexistent", home.path()).unwrap();
        let error = read_config(&home.path()).unwrap_err();
        assert_eq!(error.hint(), Some(format!("restore what it leads to, or rm {}", home.path().display())));
        let link = home.0.path().join("directory");
        symlink("/nonexistent", &link).unwrap();
        let error = read_config(&link.join("config.json")).unwrap_err();
        assert!(matches!(&error, Error::FileDangling { link: named, .. } if *named == link), "{error}");
        fs::remove_file(home.path()).unwrap();
        symlink("config.json", home.path()).unwrap();
        assert!(matches!(read_config(&home.path()), Err(Error::FileUnreadable { .. })));
    }

    #[test]
    fn size_and_encoding_are_limited() {
        let home = Home::new();
        let file = home.write(vec![b' '; MAX_FILE as usize], 0o600);
        read_config(&file).unwrap().unwrap();
        home.write(vec![b' '; 10 << 20], 0o600);
        assert!(matches!(read_config(&file), Err(Error::FileTooLarge { .. })));
        home.write(b"{\n\"\xc3\xa4\xff\"}", 0o600);
        let error = read_config(&file).unwrap_err();
        assert_eq!(error.to_string(), format!("{}:2:3: not UTF-8", file.display()));
    }
}
