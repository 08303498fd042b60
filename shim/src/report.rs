//! Hands the turn report over, to a file or to a descriptor that the caller has opened.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use codeoid_spec::policy::ReportTarget;
use codeoid_spec::report::TurnReport;

use crate::diagnostic::{Doing, Failure};
use crate::sys::process;

/// An open target: opened before the turn, so that a report that cannot be written refuses the turn instead
/// of getting lost after it.
#[derive(Debug)]
pub struct Target {
    file: File,
    name: String,
    /// Written under this name first; the target appears whole.
    draft: Option<(PathBuf, PathBuf)>,
}

impl Target {
    /// Opens the target.
    pub fn open(target: &ReportTarget) -> Result<Self, Failure> {
        match target {
            ReportTarget::Fd(number) => {
                let what = format!("open the report's target (fd:{number})");
                let copy = process::duplicate_above(*number, 3).doing(what.clone())?;
                let fd = process::received(copy).ok_or_else(|| Failure::new(what, "no such descriptor"))?;
                Ok(Self { file: File::from(fd), name: format!("fd:{number}"), draft: None })
            }
            ReportTarget::File(path) => {
                let path = std::path::absolute(path).doing("open the report's target")?;
                let what = format!("open the report's target ({})", path.display());
                let regular = !path.exists() || path.is_file();
                let mut options = File::options();
                options.write(true).create(true).mode(0o600);
                if !regular {
                    // A FIFO or /dev/stderr: what stands behind it is the caller's choice.
                    let file = File::options().write(true).open(&path).doing(what)?;
                    return Ok(Self { file, name: path.display().to_string(), draft: None });
                }
                let mut name = std::ffi::OsString::from(".");
                name.push(path.file_name().unwrap_or_default());
                name.push(format!(".{}", std::process::id()));
                let draft = path.with_file_name(name);
                let file = options.truncate(true).open(&draft).doing(what)?;
                Ok(Self { file, name: path.display().to_string(), draft: Some((draft, path)) })
            }
        }
    }

    /// Writes the report.
    pub fn write(mut self, report: &TurnReport) -> Result<(), Failure> {
        let what = format!("write the report ({})", self.name);
        let mut text = serde_json::to_vec_pretty(report).doing(what.clone())?;
        text.push(b'\n');
        self.file.write_all(&text).doing(what.clone())?;
        if let Some((draft, path)) = self.draft.take() {
            std::fs::rename(&draft, &path).doing(what)?;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((draft, _)) = &self.draft {
            // Nothing was written: leave nothing behind.
            let _ = std::fs::remove_file(draft);
        }
    }
}
