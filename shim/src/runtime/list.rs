//! `list`: the containers below the root.

use serde_json::Value;

use super::error::{Error, Result};
use super::record::{Container, names};
use super::state::describe;
use super::{Runtime, print};

/// Prints them.
pub fn list(runtime: &Runtime, args: &liboci_cli::List) -> Result<()> {
    // What is deleted meanwhile is no longer there; the rest is.
    let containers =
        names(&runtime.root)?.into_iter().filter_map(|name| Container::load(&runtime.root, &name).ok());
    if args.quiet {
        let names: String = containers.map(|container| container.record.id + "\n").collect();
        return print(&names);
    }
    let described: Vec<Value> = containers.map(|container| describe(&container, true)).collect();
    match args.format.as_str() {
        "table" => print(&table(&described)),
        // As runc, whose empty list is Go's nil.
        "json" if described.is_empty() => print("null\n"),
        "json" => print(&format!("{}\n", Value::from(described))),
        _ => Err(Error::Usage("invalid format option".to_owned())),
    }
}

fn table(containers: &[Value]) -> String {
    let mut rows = vec![["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"].map(str::to_owned)];
    for container in containers {
        rows.push(["id", "pid", "status", "bundle", "created", "owner"].map(|name| match &container[name] {
            Value::String(text) => crate::diagnostic::one_line(text),
            other => other.to_string(),
        }));
    }
    // Go's tabwriter as runc sets it: columns of at least 12, three spaces between.
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(9) + 3)
        .collect();
    rows.iter()
        .map(|row| {
            let (last, cells) = row.split_last().expect("six columns");
            let mut line: String =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            line.push_str(last);
            line.push('\n');
            line
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_one_that_scripts_cut() {
        let container = serde_json::json!({ "id": "a-rather-long-name", "pid": 7, "status": "running",
            "bundle": "/b", "created": "now", "owner": "root" });
        assert_eq!(
            table(&[container]),
            "ID                   PID         STATUS      BUNDLE      CREATED     OWNER\n\
             a-rather-long-name   7           running     /b          now         root\n"
        );
    }
}
