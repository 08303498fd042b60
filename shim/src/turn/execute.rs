//! Bundle -> executor: runs a bundle that lies in a directory, and waits for its end. Everything is read from
//! `config.json`; a turn's own bundle and one that was written down before take the same way.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use codeoid_spec::bundle::{self, Fleeting, Watched, annotation};
use codeoid_spec::host::Host;
use codeoid_spec::id::{SessionId, TurnId};
use codeoid_spec::network::Rules;
use codeoid_spec::report::Exit;
use nix::sys::signal::Signal;
use oci_spec::runtime::{Mount, Spec};

use crate::appearing::Appearing;
use crate::cgroup::{Cgroups, Hierarchies};
use crate::diagnostic::{Doing, Failure, one_line};
use crate::executor::init::Rlimits;
use crate::executor::{self, Choice};
use crate::proxy::{Network, Refusal};
use crate::session::{self, Locked, Neighbours, Session};
use crate::supervise::Signals;
use crate::sys::process;
use crate::watch::{Alarm, Watch};
use crate::{layers, seccomp};

use super::stop;

/// A bundle, ready to be run.
pub struct Execution<'a> {
    /// This host.
    pub host: &'a Host,
    /// The bundle's directory.
    pub dir: &'a Path,
    /// Its config.json.
    pub spec: &'a Spec,
    /// An empty directory for the engine.
    pub stage: PathBuf,
    /// What runs it.
    pub choice: &'a Choice,
    /// Taken before anything else.
    pub signals: &'a Signals,
    /// Say nothing but errors.
    pub quiet: bool,
    /// Called when a pin of git's protection is lost, or something appears that was not to.
    pub on_loss: Box<dyn FnMut()>,
    /// Called for each destination that the network proxy refused.
    pub on_refusal: Box<dyn FnMut(&Refusal)>,
    /// Called once, when the turn has run for a moment.
    pub on_lasting: Option<Box<dyn FnOnce()>>,
}

/// How it ended.
#[derive(Debug)]
pub struct Executed {
    /// The command's end.
    pub exit: Exit,
    /// Why the command could not be executed, if so: errno.
    pub exec_error: Option<i32>,
    /// Limits that are weaker than asked for, in sentences.
    pub weaker: Vec<String>,
    /// What was noticed while it ran, in sentences.
    pub warnings: Vec<String>,
}

impl Execution<'_> {
    /// Runs the bundle. Two things are done on the way, with the session's lock held: `before` anything is
    /// mounted (it is told whether another turn of the session is running), and `beside` the engine, while that
    /// builds the sandbox (it is told what is weaker about the limits); the command starts when both are done.
    pub fn run(
        self,
        session: &SessionId,
        turn: &TurnId,
        before: impl FnOnce(bool) -> Result<(), Failure>,
        beside: impl FnOnce(&Locked<'_>, &[String]) -> Result<(), Failure>,
    ) -> Result<Executed, Failure> {
        let started = Instant::now();
        let spec = self.spec;
        let profile = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
        let cache = self.host.runtime.join("layers");
        let filter = profile.map(|profile| seccomp::program(profile, &cache)).transpose()?;
        let Limited { cgroups, rlimits, weaker } = limit(spec, turn)?;
        let paths = |name| bundle::paths(spec, name).doing("read the bundle");
        let (pins, absent) = (paths(annotation::WATCH_PINS)?, paths(annotation::WATCH_ABSENT)?);
        let (masks, sockets) = (paths(annotation::WATCH_MASKS)?, paths(annotation::WATCH_SOCKETS)?);
        let workspace = spec.process().as_ref().map(|process| process.cwd().clone());
        let pins = workspace.into_iter().chain(pins).collect();
        let timeout = bundle::annotation(spec, annotation::TIMEOUT)
            .and_then(|text| text.parse().ok())
            .map(Duration::from_millis);
        let terminal = bundle::annotation(spec, annotation::TERMINAL).unwrap_or("");
        let terminal = ["0", "1", "2"].map(|number| terminal.contains(number));
        // Only a layer that is written to is shared; without one a turn has nothing to do with others.
        let home = bundle::annotation(spec, annotation::HOME_HIDES).map(str::to_owned);

        let session = Session::new(&self.host.state, session);
        let until = timeout.map(|limit| started + limit);
        let given_up = || {
            let late = until.is_some_and(|until| Instant::now() >= until);
            let signal = self.signals.ending();
            signal.map(|signal| (signal, false)).or_else(|| late.then_some((Signal::SIGKILL, true)))
        };
        let lock = match session.lock_unless(given_up)? {
            ControlFlow::Continue(lock) => lock,
            ControlFlow::Break((signal, late)) => return Ok(Executed::never(signal, late, weaker)),
        };
        let neighbours = home.as_ref().map_or(Neighbours::None, |home| lock.neighbours(home));
        let join = match neighbours {
            Neighbours::None => None,
            Neighbours::Join(shared) => Some(shared),
            Neighbours::Differs => {
                return Err(Failure::new(
                    "start a turn of the session",
                    "another of its turns is running whose home hides something else",
                )
                .hint("wait for it, use the same rules, or use another session"));
            }
        };
        before(join.is_some())?;
        let mut network = Network::new(rules(spec)?, self.on_refusal);
        let (quiet, mut on_loss) = (self.quiet, self.on_loss);
        let on_alarm = move |alarm: &Alarm| {
            // Nothing that a person has to act upon; the report has it.
            if !matches!(alarm, Alarm::Closed(_)) {
                warn(quiet, &sentence(alarm));
            }
            if matches!(alarm, Alarm::Lost(_) | Alarm::Appeared(_)) {
                on_loss();
            }
        };
        // What is there is looked at before it is mounted: whatever takes its place later is another thing.
        let spec = &*with_late_masks(spec, self.host)?;
        let masked: HashSet<&PathBuf> = spec.mounts().iter().flatten().map(Mount::destination).collect();
        let is_masked = |path: &PathBuf| masked.contains(path);
        let mut watch = Watch::new(pins, absent, (masks, sockets), is_masked, Box::new(on_alarm));
        watch.look_for(Appearing::new(spec));
        let on_lasting = self.on_lasting;
        watch.when_armed(Box::new(move || {
            process::give_back_code();
            if let Some(then) = on_lasting {
                then();
            }
        }));
        if let (Some(neighbour), Some(home)) = (&join, &home) {
            lock.register_early(turn, neighbour, home)?;
        }
        let running = executor::Start {
            bundle: self.dir,
            spec,
            stage: self.stage,
            join: join.clone(),
            cgroups: cgroups.entrances.clone(),
            rlimits,
            filter,
            runtime: self.choice.runtime(),
        }
        .run();
        let running = match running {
            Ok(running) => running,
            Err(failure) => {
                session::unregister(&session, turn);
                return Err(failure);
            }
        };
        stop::at("started");
        if let Err(failure) = beside(&lock, &weaker) {
            running.abandon();
            session::unregister(&session, turn);
            return Err(failure);
        }
        running.go();
        // With a neighbour others may come already, and find it through us.
        let lock = match &join {
            Some(_) => {
                drop(lock);
                None
            }
            None => Some(lock),
        };
        stop::at("running");
        let mut neighbour = join;
        let joinable = |engine| {
            // Never waited for: the turn runs, and has signals and a time limit. Without it the registration by the
            // neighbour's namespaces stays good for as long as they are kept.
            let Some(lock) = lock.or_else(|| session.try_lock()) else { return Ok(()) };
            let registered = home.as_ref().map_or(Ok(()), |home| lock.register(turn, engine, home));
            neighbour = None;
            registered
        };
        let ended = running.wait(joinable, self.signals, terminal, until, &mut watch, &mut network);
        network.end();
        session::unregister(&session, turn);
        drop(neighbour);
        if home.is_some()
            // Whoever has it is a turn that starts: then it is not the last one that ends here.
            && let Some(_lock) = session.try_lock()
            && !session.is_alive()
        {
            layers::forget_volatile(&session.home_work());
        }
        let ended = ended?;
        let mut warnings: Vec<String> = watch.alarms().map(sentence).chain(network.warnings()).collect();
        if ended.timed_out {
            warnings.push("the time limit ended the command".to_owned());
        }
        if cgroups.out_of_memory() {
            warnings.push("the memory limit ended a process of the turn".to_owned());
        }
        Ok(Executed { exit: ended.exit, exec_error: ended.exec_error, weaker, warnings })
    }
}

impl Executed {
    /// The end of a turn while it waited for another one of its session.
    fn never(signal: Signal, late: bool, weaker: Vec<String>) -> Self {
        let what = if late { "the time limit" } else { signal.as_str() };
        let sentence =
            format!("{what} ended the turn while it waited for another one of its session to start");
        let exit = Exit { code: None, signal: Some(signal as i32) };
        Self { exit, exec_error: None, weaker, warnings: vec![sentence] }
    }

    /// The exit code that the shim hands on; an error where the command could not be executed.
    pub fn code(&self, command: &str) -> Result<u8, Failure> {
        let Some(errno) = self.exec_error.map(nix::errno::Errno::from_raw) else {
            return Ok(u8::try_from(self.exit.shell_code()).unwrap_or(255));
        };
        let what = format!("run {command:?}");
        Err(match errno {
            nix::errno::Errno::ENOENT if command.contains('/') => {
                Failure::new(what, "no such file or directory").code(127)
            }
            nix::errno::Errno::ENOENT => Failure::new(what, "executable file not found in $PATH").code(127),
            other => Failure::new(what, other.desc().to_lowercase()).code(126),
        })
    }
}

/// What the network proxy lets through; `None` where the bundle asks for none.
fn rules(spec: &Spec) -> Result<Option<Rules>, Failure> {
    if bundle::annotation(spec, annotation::NETWORK_PROXY).is_none() {
        return Ok(None);
    }
    let what = "read the bundle";
    let list = bundle::strings(spec, annotation::NETWORK_ALLOW).doing(what)?;
    Rules::parse(list.iter().map(String::as_str)).doing(what).map(Some)
}

/// The bundle with the masks that are not written down: of sockets, and of what has been made since it was planned.
fn with_late_masks<'a>(spec: &'a Spec, host: &Host) -> Result<Cow<'a, Spec>, Failure> {
    use std::os::unix::fs::FileTypeExt;
    if [annotation::WATCH_MASKS, annotation::WATCH_SOCKETS]
        .iter()
        .all(|name| bundle::annotation(spec, name).is_none())
    {
        return Ok(Cow::Borrowed(spec));
    }
    let (no_file, no_directory) = layers::stand_ins(&host.layers)?;
    let mut nothing = |path: &Path, watched| {
        let kind = path.symlink_metadata().ok()?.file_type();
        match watched {
            // No mount can lie on it; what it leads to is hidden under its own name.
            Watched::Hidden if kind.is_symlink() => None,
            Watched::Hidden if kind.is_dir() => Some(no_directory.clone()),
            Watched::Hidden => Some(no_file.clone()),
            Watched::Socket => kind.is_socket().then(|| no_file.clone()),
        }
    };
    let masks = bundle::late_masks(spec, &mut nothing).doing("read the bundle")?;
    let known = Fleeting::of(spec).doing("read the bundle")?;
    if masks.is_empty() && !spec.mounts().iter().flatten().any(|mount| known.is_mask(mount)) {
        return Ok(Cow::Borrowed(spec));
    }
    let mut spec = spec.clone();
    let mounts = spec.mounts().iter().flatten().cloned().chain(masks).collect();
    spec.set_mounts(Some(mounts));
    bundle::hold_masks(&mut spec).doing("read the bundle")?;
    Ok(Cow::Owned(spec))
}

/// How a turn's limits are held.
#[derive(Default)]
struct Limited {
    cgroups: Cgroups,
    rlimits: Rlimits,
    /// What is weaker, in sentences.
    weaker: Vec<String>,
}

/// Makes the cgroups that the limits ask for. A limit that cannot be had this way, and that the owner accepts to
/// be weaker, is left to an rlimit, as far as there is one for it.
fn limit(spec: &Spec, turn: &TurnId) -> Result<Limited, Failure> {
    let mut limited = Limited::default();
    let Some(resources) = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref()) else {
        return Ok(limited);
    };
    let accepted = bundle::strings(spec, annotation::FALLBACK).doing("read the bundle")?;
    let hierarchies = Hierarchies::read().doing("look at the cgroups of this host")?;
    let mut resources = resources.clone();
    loop {
        let error = match Cgroups::make(&resources, turn, &hierarchies) {
            Ok(cgroups) => {
                limited.cgroups = cgroups;
                return Ok(limited);
            }
            Err(error) => error,
        };
        if !accepted.iter().any(|rule| rule == error.rule) {
            return Err(Failure::new(
                format!("rule {}", error.rule),
                format!("it cannot be enforced here: {}", error.why),
            )
            .hint(
                "drop the limit, start codeoid-shim in a cgroup of yours (`systemd-run --user --scope -p \
                 Delegate=yes …`), or accept less with \"fallback\" in the configuration file",
            ));
        }
        let instead = match error.rule {
            "limits.memory" => {
                let limit = resources.memory().as_ref().and_then(|memory| memory.limit());
                limited.rlimits.memory = limit.and_then(|bytes| u64::try_from(bytes).ok());
                resources.set_memory(None);
                "weaker (no cgroup can be made: each process by itself may use so much address space)"
            }
            // uid 0 of the host is above that rlimit (setrlimit(2), RLIMIT_NPROC).
            "limits.pids" if nix::unistd::geteuid().is_root() => {
                resources.set_pids(None);
                "not enforced (no cgroup can be made)"
            }
            "limits.pids" => {
                let limit = resources.pids().as_ref().map(|pids| pids.limit());
                limited.rlimits.pids = limit.and_then(|count| u64::try_from(count).ok());
                resources.set_pids(None);
                "weaker (no cgroup can be made: the turns of the session may have so many processes together)"
            }
            _ => {
                resources.set_cpu(None);
                "not enforced (no cgroup can be made)"
            }
        };
        limited.weaker.push(format!("{}: {instead}", error.rule));
    }
}

fn sentence(alarm: &Alarm) -> String {
    match alarm {
        Alarm::Lost(path) => format!(
            "{} was replaced on the host while the turn ran; the sandbox's mount there is gone",
            path.display()
        ),
        Alarm::Masked(path) => {
            format!("{} is hidden and was made or replaced on the host; it is hidden again", path.display())
        }
        Alarm::Unmasked(path) => {
            format!(
                "{} is hidden and was made or replaced on the host; THE TURN CAN SEE IT NOW",
                path.display()
            )
        }
        Alarm::Closed(path) => {
            format!(
                "{} is a socket of the host that appeared while the turn ran; it is hidden now",
                path.display()
            )
        }
        Alarm::Open(path) => format!(
            "{} is a socket of the host that appeared while the turn ran; THE TURN CAN CONNECT TO IT",
            path.display()
        ),
        Alarm::Appeared(path) => {
            format!("{} appeared while the turn ran; git follows or runs what is there", path.display())
        }
    }
}

/// Says something that cannot wait for the report.
#[expect(clippy::print_stderr, reason = "an alarm is for the person at the terminal, now")]
fn warn(quiet: bool, text: &str) {
    if !quiet {
        eprintln!("codeoid-shim: warning: {}", one_line(text));
    }
}
