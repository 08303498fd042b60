//! Real engines, private to a test: their own data, state, socket and pid file, and this project's program as their
//! runtime, registered as docs/engines.md says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Finished, Identity, Place, docs, wait_until};

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// podman, which needs no daemon.
    Podman,
    /// containerd with its client ctr.
    Containerd,
    /// dockerd, in a network namespace of its own.
    Docker,
}

/// The image's name.
pub const IMAGE: &str = "docker.io/library/bb:1";

/// An engine with one image.
#[derive(Debug)]
pub struct Engine<'a> {
    place: &'a Place,
    kind: Kind,
    daemon: Option<Child>,
}

impl<'a> Engine<'a> {
    /// Starts it, and gives it an image with busybox.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(place: &'a Place, kind: Kind) -> Self {
        let mut engine = Self { place, kind, daemon: None };
        let archive = image(place);
        let archive = archive.to_str().expect("a plain path");
        match kind {
            Kind::Podman => {
                let registered = registered("toml", "[engine]");
                let (first, runtimes) = registered.split_once("\n\n").expect("two tables");
                let text = format!(
                    "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n{first}\n\
                     cgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\ntmp_dir = \"{}\"\n{runtimes}\n",
                    place.at("pm/tmp").display()
                );
                place.write("pm/containers.conf", text);
                let storage = format!(
                    "[storage]\ndriver = \"{1}\"\ngraphroot = \"{0}/graph\"\nrunroot = \"{0}/run\"\n",
                    place.at("pm").display(),
                    // Without root it needs what a host may lack.
                    if place.identity() == Identity::Root { "overlay" } else { "vfs" }
                );
                place.write("pm/storage.conf", storage);
                engine.run(&["load", "--input", archive]).expect_ok();
            }
            Kind::Containerd => {
                let dir = place.make("cd");
                let mut daemon = Command::new(find("containerd"));
                daemon.arg("--root").arg(dir.join("root")).arg("--state").arg(dir.join("state"));
                daemon.arg("--address").arg(dir.join("s"));
                engine.launch(daemon);
                engine.wait_until_up(&["version"]);
                engine.run(&["image", "import", archive]).expect_ok();
            }
            Kind::Docker => {
                let dir = place.make("dk");
                place.write("dk/daemon.json", registered("json", "\"runtimes\""));
                let mut daemon = Command::new("unshare");
                let script = "ip link set lo up && exec \"$0\" \"$@\"";
                daemon.args(["--net", "--", "sh", "-c", script]).arg(find("dockerd"));
                daemon.arg("--config-file").arg(dir.join("daemon.json"));
                daemon.arg("--data-root").arg(dir.join("data")).arg("--exec-root").arg(dir.join("exec"));
                daemon.arg("--pidfile").arg(dir.join("pid"));
                daemon.arg("-H").arg(format!("unix://{}", dir.join("s").display()));
                engine.launch(daemon);
                engine.wait_until_up(&["version"]);
                engine.run(&["load", "--input", archive]).expect_ok();
            }
        }
        engine
    }

    fn launch(&mut self, mut daemon: Command) {
        let log = fs::File::create(self.place.at("daemon.log")).expect("the place is ours");
        daemon.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        daemon.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        self.daemon = Some(daemon.spawn().unwrap_or_else(|error| panic!("{daemon:?}: {error}")));
    }

    fn wait_until_up(&self, words: &[&str]) {
        let up = wait_until(Duration::from_secs(60), || self.run(words).ok());
        assert!(
            up,
            "{:?}: {}",
            self.kind,
            fs::read_to_string(self.place.at("daemon.log")).unwrap_or_default()
        );
    }

    /// The engine's client with these words.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(&self, words: &[&str]) -> Finished {
        let mut command = match self.kind {
            Kind::Podman => {
                let mut command = self.place.command(find("podman"));
                command.env("CONTAINERS_CONF", self.place.at("pm/containers.conf"));
                command.env("CONTAINERS_STORAGE_CONF", self.place.at("pm/storage.conf"));
                command
            }
            Kind::Containerd => {
                let mut command = self.place.command(find("ctr"));
                command.arg("--address").arg(self.place.at("cd/s"));
                command
            }
            Kind::Docker => {
                let mut command = self.place.command(find("docker"));
                command.env("DOCKER_HOST", format!("unix://{}", self.place.at("dk/s").display()));
                command
            }
        };
        // An ordinary user's engine needs programs that are not in an ordinary user's PATH.
        command.args(words).env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        self.place.finish(command)
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        match self.kind {
            Kind::Podman => {
                let _ = self.run(&["rm", "--all", "--force", "--time", "0"]);
                // What keeps an ordinary user's namespaces.
                let pause = fs::read_to_string(self.place.at("pm/tmp/pause.pid")).unwrap_or_default();
                if let Ok(pid) = pause.trim().parse() {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            Kind::Containerd => {}
            Kind::Docker => {
                let all = self.run(&["ps", "--all", "--quiet"]).out();
                let all: Vec<&str> = all.lines().collect();
                if !all.is_empty() {
                    let _ = self.run(&[&["rm", "--force"], &all[..]].concat());
                }
            }
        }
        if let Some(daemon) = &mut self.daemon {
            // dockerd ends the containerd that it has started.
            let _ = kill(Pid::from_raw(i32::try_from(daemon.id()).expect("a pid")), Signal::SIGTERM);
            let _ = daemon.wait();
        }
    }
}

/// The block of this language in docs/engines.md that contains this, with the program under test in it.
fn registered(language: &str, contains: &str) -> String {
    let text = docs("docs/engines.md");
    let fence = format!("```{language}\n");
    let block = text
        .split(fence.as_str())
        .skip(1)
        .filter_map(|rest| rest.split_once("\n```"))
        .map(|(block, _)| block)
        .find(|block| block.contains(contains))
        .unwrap_or_else(|| panic!("docs/engines.md has no {language} with {contains}"));
    let example = "/usr/local/bin/codeoid-shim";
    assert!(block.contains(example), "{block}");
    block.replace(example, &crate::shim().to_string_lossy())
}

/// The words of the shell line in docs/engines.md that begins with this, with the program under test in it.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn documented(begins: &str) -> Vec<String> {
    let text = docs("docs/engines.md");
    let line = text.lines().find(|line| line.starts_with(begins));
    let line = line.unwrap_or_else(|| panic!("docs/engines.md has no line {begins}"));
    let line = line.replace("/usr/local/bin/codeoid-shim", &crate::shim().to_string_lossy());
    line.split(' ')
        .skip(1)
        .map(|word| if word == "IMAGE" { IMAGE.to_owned() } else { word.to_owned() })
        .collect()
}

fn find(name: &str) -> PathBuf {
    crate::requires::find(name).unwrap_or_else(|| panic!("{name} is not installed"))
}

/// An archive with the image, as `docker save` writes it.
fn image(place: &Place) -> PathBuf {
    let script = r#"
import hashlib, io, json, os, subprocess, sys, tarfile
place, busybox = sys.argv[1], "/bin/busybox"
layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as tar:
    for name in ("bin", "etc", "tmp", "root", "proc", "sys", "dev"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        tar.addfile(entry)
    entry = tar.gettarinfo(busybox, "bin/busybox")
    entry.type, entry.linkname, entry.uid, entry.gid = tarfile.REGTYPE, "", 0, 0
    entry.size = os.path.getsize(busybox)
    tar.addfile(entry, open(busybox, "rb"))
    for applet in subprocess.check_output([busybox, "--list"], text=True).split():
        if applet != "busybox":
            entry = tarfile.TarInfo("bin/" + applet)
            entry.type, entry.linkname, entry.mode = tarfile.LNKTYPE, "bin/busybox", 0o755
            tar.addfile(entry)
    passwd = b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n"
    entry = tarfile.TarInfo("etc/passwd")
    entry.size = len(passwd)
    tar.addfile(entry, io.BytesIO(passwd))
layer = layer.getvalue()
digest = hashlib.sha256(layer).hexdigest()
config = json.dumps({"architecture": "amd64" if os.uname().machine == "x86_64" else "arm64", "os": "linux",
    "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]}}).encode()
name = hashlib.sha256(config).hexdigest() + ".json"
manifest = json.dumps([{"Config": name, "RepoTags": ["docker.io/library/bb:1"], "Layers": ["layer.tar"]}]).encode()
with tarfile.open(place + "/image.tar", "w") as tar:
    for name, content in ((name, config), ("layer.tar", layer), ("manifest.json", manifest)):
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
"#;
    let mut command = place.command("/usr/bin/python3");
    command.args(["-c", script]).arg(place.at(""));
    place.finish(command).expect_ok();
    let archive = place.at("image.tar");
    assert!(Path::new(&archive).exists());
    archive
}
