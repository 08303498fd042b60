//! The command line of a runtime: global options as runc has them, then a verb.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand, ValueEnum};

use super::error::{Error, Result};
use super::log::{Format, Log};
use super::{
    Runtime, create, default_root, delete, events, exec, features, kill, list, pause, ps, run, spec, start,
    state, update,
};

/// The words that make a command line one of a runtime. `run` is one where there is no `--` before a command.
const VERBS: [&str; 17] = [
    "create",
    "start",
    "state",
    "kill",
    "delete",
    "exec",
    "list",
    "ps",
    "pause",
    "resume",
    "events",
    "update",
    "spec",
    "features",
    "checkpoint",
    "restore",
    "run",
];

/// Options before the verb that have a value.
const VALUED: [&str; 6] = ["--root", "--log", "--log-format", "--log-level", "--rootless", "--criu"];

/// The options and the verb.
#[derive(Debug, Parser)]
#[command(name = "codeoid-shim", disable_version_flag = true, max_term_width = 100)]
pub struct Cli {
    /// Directory for the containers' state
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
    /// File for errors and warnings [default: standard error]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Format of their lines
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    log_format: LogFormat,
    /// Accepted: error, warning and what is above are always logged
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log what helps to find a fault
    #[arg(long)]
    debug: bool,
    /// Let systemd keep the cgroups; paths of cgroups are SLICE:PREFIX:NAME then
    #[arg(long)]
    systemd_cgroup: bool,
    /// Accepted: whether the caller may change cgroups is found out
    #[arg(long, value_name = "BOOL|auto", num_args = 0..=1, require_equals = true)]
    rootless: Option<Option<String>>,
    /// Accepted and unused
    #[arg(long, hide = true, value_name = "PATH")]
    criu: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a container whose process waits for `start`
    Create(liboci_cli::Create),
    /// Start a created container
    Start(liboci_cli::Start),
    /// Print what a container does, as JSON
    State(liboci_cli::State),
    /// Send a signal to a container
    Kill(kill::Kill),
    /// Remove a container
    Delete(liboci_cli::Delete),
    /// Create and start a container, and wait for it
    Run(liboci_cli::Run),
    /// Run a further process in a container
    Exec(liboci_cli::Exec),
    /// List the containers
    List(liboci_cli::List),
    /// Show the processes of a container
    Ps(liboci_cli::Ps),
    /// Freeze a container
    Pause(liboci_cli::Pause),
    /// Thaw a container
    Resume(liboci_cli::Resume),
    /// Print what a container uses
    Events(liboci_cli::Events),
    /// Change a container's limits
    Update(update::Update),
    /// Write an example config.json
    Spec(liboci_cli::Spec),
    /// Print what this runtime can do, as JSON
    Features(liboci_cli::Features),
    /// Not available: refused
    Checkpoint(Unavailable),
    /// Not available: refused
    Restore(Unavailable),
}

/// The arguments of a verb that is refused whatever they are.
#[derive(Debug, clap::Args)]
struct Unavailable {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _words: Vec<OsString>,
}

static LISTEN_FDS: OnceLock<u32> = OnceLock::new();

/// Remembers how many descriptors a service manager passes on, before the variable is removed.
pub fn remember_listen_fds() {
    if let Some(count) = std::env::var("LISTEN_FDS").ok().and_then(|text| text.parse().ok()) {
        let _ = LISTEN_FDS.set(count);
    }
}

/// The verb of a command line, if it is one of a runtime.
pub fn verb(args: &[OsString]) -> Option<&'static str> {
    let mut words = args.iter().skip(1);
    while let Some(word) = words.next() {
        let text = word.to_str()?;
        if VALUED.contains(&text) && text != "--rootless" {
            words.next()?;
        } else if !text.starts_with('-') {
            let verb = VERBS.into_iter().find(|verb| *verb == text)?;
            let turn = verb == "run" && words.any(|word| word == OsStr::new("--"));
            return (!turn).then_some(verb);
        }
    }
    None
}

/// Makes the program safe to be met by containers, where a verb enters one.
pub fn seal(args: &[OsString]) -> Result<()> {
    match verb(args) {
        Some("create" | "run" | "exec") => super::seal::seal(),
        _ => Ok(()),
    }
}

/// Does what a command line says, if it is one of a runtime. `None`: it may be a turn's.
pub fn main(args: &[OsString]) -> Option<ExitCode> {
    let verb = verb(args)?;
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // `run` is a turn's word too, which knows better what is wrong, or how it is used.
        Err(_) if verb == "run" => return None,
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return Some(ExitCode::SUCCESS);
        }
        Err(error) => return Some(usage(args, &error)),
    };
    if let Verb::Run(run) = &cli.verb
        && run::is_turn(&run.bundle)
        && !run.detach
    {
        return Some(match crate::turn::run_bundle(&run.bundle, cli.root.as_deref()) {
            Ok(code) => ExitCode::from(code),
            Err(failure) => crate::cli::report(&failure),
        });
    }
    Some(cli.run(verb))
}

/// A usage error goes to the log that the engine reads, if the command line says which.
#[expect(clippy::print_stderr, reason = "the log cannot be had")]
fn usage(args: &[OsString], error: &clap::Error) -> ExitCode {
    let value = |name: &str| {
        let at = args.iter().position(|word| word == OsStr::new(name))?;
        args.get(at + 1)
    };
    let format = match value("--log-format") {
        Some(format) if format == OsStr::new("json") => Format::Json,
        _ => Format::Text,
    };
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or(&text);
    let first =
        first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect::<Vec<_>>().join(" ");
    match Log::open(value("--log").map(AsRef::as_ref), format, false) {
        Ok(log) => log.error(&first),
        Err(_) => eprintln!("{first}"),
    }
    ExitCode::FAILURE
}

impl Cli {
    #[expect(clippy::print_stderr, reason = "the log cannot be had")]
    fn run(self, verb: &str) -> ExitCode {
        let format = match self.log_format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        };
        let debug = self.debug || matches!(self.log_level.as_deref(), Some("debug" | "trace"));
        let log = match Log::open(self.log.as_deref(), format, debug) {
            Ok(log) => log,
            Err(error) => {
                let path = self.log.as_deref().unwrap_or(std::path::Path::new("")).display().to_string();
                eprintln!("open {path}: {}", super::log::plain(&error.to_string()));
                return ExitCode::FAILURE;
            }
        };
        let root = match self.root {
            Some(root) => std::path::absolute(root).unwrap_or_default(),
            None => default_root(),
        };
        let listen_fds = LISTEN_FDS.get().copied().unwrap_or(0);
        let runtime = Runtime { root, log, systemd: self.systemd_cgroup, listen_fds };
        runtime.log.debug(&format!("{verb}: state in {}", runtime.root.display()));
        match self.verb.run(&runtime) {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                let (before, code) = match verb {
                    "create" => ("codeoid-shim create failed: ", 1),
                    "run" => ("codeoid-shim run failed: ", 1),
                    "exec" => ("exec failed: ", 255),
                    _ => ("", 1),
                };
                runtime.log.error(&format!("{before}{error}"));
                ExitCode::from(code)
            }
        }
    }
}

impl Verb {
    fn run(self, runtime: &Runtime) -> Result<u8> {
        let done = match self {
            Self::Run(args) => return run::run(runtime, &args),
            Self::Exec(args) => return exec::exec(runtime, &args),
            Self::Create(args) => create::create(runtime, &args),
            Self::Start(args) => start::start(runtime, &args.container_id),
            Self::State(args) => state::state(runtime, &args.container_id),
            Self::Kill(args) => kill::kill(runtime, &args),
            Self::Delete(args) => delete::delete(runtime, &args),
            Self::List(args) => list::list(runtime, &args),
            Self::Ps(args) => ps::ps(runtime, &args),
            Self::Pause(args) => pause::pause(runtime, &args.container_id),
            Self::Resume(args) => pause::resume(runtime, &args.container_id),
            Self::Events(args) => events::events(runtime, &args),
            Self::Update(args) => update::update(runtime, &args),
            Self::Spec(args) => spec::spec(&args),
            Self::Features(_) => features::features(),
            Self::Checkpoint(_) => Err(Error::Unsupported("checkpoint".to_owned())),
            Self::Restore(_) => Err(Error::Unsupported("restore".to_owned())),
        };
        done.map(|()| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_turn_and_a_container_are_told_apart() {
        for (line, expected) in [
            ("x run -- ls", None),
            ("x run --network off -- run x", None),
            ("x --root /r run id", Some("run")),
            ("x run -b /b id", Some("run")),
            ("x --root run check", None),
            ("x --root /r --log l --log-format json create --bundle b id", Some("create")),
            ("x --rootless=true state id", Some("state")),
            ("x explain create", None),
            ("x", None),
            ("x --help", None),
        ] {
            assert_eq!(verb(&words(line)), expected, "{line}");
        }
    }

    #[test]
    fn what_engines_say_is_understood() {
        for line in [
            "x --root /r --log /l --log-format json create --bundle /b --pid-file /p --console-socket /s id",
            "x create id --bundle /b --preserve-fds 2 --no-pivot --no-new-keyring",
            "x --systemd-cgroup --debug --log-level debug --rootless=auto start id",
            "x exec --process /p --detach --pid-file /q id",
            "x exec --pid-file /q --process /p --tty --console-socket /s --detach id",
            "x exec -t -u 1:2 -e A=B --cwd / --cap CAP_KILL --ignore-paused id ls -l --all",
            "x ps --format json id",
            "x ps id -ef --sort pid",
            "x kill --all id 9",
            "x kill id 15",
            "x kill id",
            "x delete --force id",
            "x update --resources=/f id",
            "x update -r - id",
            "x update --memory -1 --memory-swap -1 --pids-limit -1 --cpu-quota -1 id",
            "x events --stats id",
            "x list -q",
            "x list --format json",
            "x spec --rootless",
            "x checkpoint --image-path /i id",
            "x run --detach --keep --pid-file /p --no-subreaper id",
        ] {
            Cli::try_parse_from(words(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
