use super::*;
use crate::fixture::Scratch;

fn on(path: &[&Path], common_dir: &Path, avoid: &[PathBuf]) -> Result<Git, Error> {
    Git::find_on(&std::env::join_paths(path).unwrap(), common_dir, avoid)
}

#[test]
fn a_planted_git_is_passed_over() {
    let s = Scratch::new();
    for place in ["turn/bin", "plain", "elsewhere", "not-executable"] {
        s.trap(format!("{place}/git"), "mark");
    }
    std::fs::set_permissions(s.path("not-executable/git"), std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::create_dir(s.path("directory")).unwrap();
    std::fs::create_dir(s.path("directory/git")).unwrap();
    std::fs::create_dir(s.path("link")).unwrap();
    std::os::unix::fs::symlink(s.path("turn/bin/git"), s.path("link/git")).unwrap();
    std::os::unix::fs::symlink(s.path("turn/bin"), s.path("link-to-directory")).unwrap();
    // The turn's directory is named by way of a symlink, too.
    std::os::unix::fs::symlink(s.path("turn"), s.path("also-turn")).unwrap();
    let avoid = [s.path("also-turn")];
    let planted: Vec<PathBuf> =
        ["turn/bin", "link", "link-to-directory", "also-turn/bin", "not-executable", "directory", "absent"]
            .iter()
            .map(|place| s.path(place))
            .collect();
    let mut path: Vec<&Path> = planted.iter().map(PathBuf::as_path).collect();
    path.extend([Path::new("."), Path::new("turn/bin"), Path::new("")]);
    let plain = s.path("plain");
    path.push(&plain);
    let git = on(&path, &s.root, &avoid).unwrap();
    assert_eq!(git.program, plain.join("git"));
    assert!(!git.path.to_string_lossy().contains("turn"), "{:?}", git.path);
    path.pop();
    assert!(matches!(on(&path, &s.root, &avoid), Err(Error::NotFound)));
    // Without the rule the first one is taken.
    assert_eq!(on(&path, &s.root, &[]).unwrap().program, s.path("turn/bin/git"));
}

#[test]
fn large_input_and_output_do_not_wait_for_each_other() {
    let s = Scratch::new();
    let git = s.repository("r").join(".git");
    let git = Git::find(&git, &[]).unwrap();
    let ids = s.git("r", ["rev-parse", "HEAD", "HEAD:file"]);
    let input = format!("{ids}\n").repeat(20_000);
    let output = git.run(["cat-file", "--batch"], input.as_bytes()).unwrap();
    assert!(output.len() > 5_000_000, "{}", output.len());
    // A program that does not read its input.
    assert!(git.run(["rev-parse", "HEAD"], input.as_bytes()).is_ok());
    // Nothing to read is the end of the input.
    assert_eq!(git.run(["cat-file", "--batch-check"], b"").unwrap(), b"");
}

#[test]
fn what_git_says_is_printable_and_names_the_verb() {
    let s = Scratch::new();
    let git = Git::find(&s.repository("r").join(".git"), &[]).unwrap();
    let error = git.run(["rev-parse", "--verify", "a\u{1b}[2Jb\u{202e}"], b"").unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, Error::Failed { verb, .. } if verb == "rev-parse"), "{text}");
    assert!(text.contains("fatal") && !text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    let many: String = (0..100_000).map(|count| format!("{count}\n")).collect();
    assert_eq!(last_lines(many.as_bytes()), "99997; 99998; 99999");
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_that_does_not_end_is_ended() {
    let s = Scratch::new();
    let git = Git { program: PathBuf::from("/bin/sleep"), path: OsString::new(), common_dir: s.root.clone() };
    let mut command = Command::new(&git.program);
    command.arg("600");
    let call = Call::start(command).unwrap();
    let pid = call.child.id();
    drop(call);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn hooks_do_not_run() {
    let s = Scratch::new();
    let repository = s.repository("r");
    let mark = s.trap("hooks/reference-transaction", "mark");
    s.git("r", ["config", "core.hooksPath", s.path("hooks").to_str().unwrap()]);
    let git = Git::find(&repository.join(".git"), &[]).unwrap();
    let head = s.git("r", ["rev-parse", "HEAD"]);
    git.run(["update-ref", "refs/heads/x", &head], b"").unwrap();
    assert!(!mark.exists());
    // The control: the hook is one that git runs.
    s.git("r", ["update-ref", "refs/heads/y", &head]);
    assert!(mark.exists());
}
