//! `ps`: the processes of a container.

use std::process::Command;

use super::error::{Error, Result};
use super::record::Container;
use super::{Runtime, print};

/// Prints them: their numbers, or what ps(1) says of them.
pub fn ps(runtime: &Runtime, args: &liboci_cli::Ps) -> Result<()> {
    let container = Container::load(&runtime.root, &args.container_id)?;
    let pids: Vec<i32> = match container.cgroup() {
        Ok(cgroup) => cgroup.processes().into_iter().map(nix::unistd::Pid::as_raw).collect(),
        Err(error) => return Err(error),
    };
    match args.format.as_str() {
        "json" => return print(&format!("{}\n", serde_json::json!(pids))),
        "table" => {}
        _ => return Err(Error::Usage("invalid format option".to_owned())),
    }
    let options = if args.ps_options.is_empty() { vec!["-ef".to_owned()] } else { args.ps_options.clone() };
    let output = Command::new("ps").args(&options).output().map_err(Error::io("ps"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Usage(format!("ps: {}: {}", output.status, said.trim())));
    }
    print(&only(&String::from_utf8_lossy(&output.stdout), &pids)?)
}

/// The lines of ps(1) that belong to these processes, and its heading.
fn only(text: &str, pids: &[i32]) -> Result<String> {
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    let column = heading
        .split_ascii_whitespace()
        .position(|word| word == "PID")
        .ok_or_else(|| Error::Usage("couldn't find PID field in ps output".to_owned()))?;
    let mut out = format!("{heading}\n");
    for line in lines {
        let pid = line.split_ascii_whitespace().nth(column).and_then(|word| word.parse::<i32>().ok());
        if pid.is_some_and(|pid| pids.contains(&pid)) {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_containers_own_lines_are_shown() {
        let text = "UID PID CMD\nroot 1 init\nroot 7 sleep 7\nx\n";
        assert_eq!(only(text, &[7]).unwrap(), "UID PID CMD\nroot 7 sleep 7\n");
        assert!(only("UID CMD\n", &[]).is_err());
    }
}
