//! One loose object (gitformat-loose(5): zlib of "type size NUL content"): copied and hashed in one pass over what
//! was read, so that it does not matter whether the file changes meanwhile, nor how large it is.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::zlib::{Decompress, FlushDecompress, Status};

use super::HELD;
use crate::os::WriteError;

const PIECE: usize = 64 * 1024;
/// git looks for the header's end in as many bytes (`MAX_HEADER_LEN` in its object-file.c).
const HEADER: usize = 32;

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is what its name says, and lies in the quarantine now.
    Brought,
    /// It is not.
    Refused,
    /// It would go beyond a limit.
    Left,
}

/// What may still be used up.
#[derive(Debug)]
pub(super) struct Budget {
    /// Bytes on the quarantine's file system.
    pub(super) disk: u64,
    /// Bytes of inflated content.
    pub(super) inflated: u64,
}

/// Copies objects one after another.
pub(super) struct Copier {
    inflate: Decompress,
    input: Vec<u8>,
    output: Vec<u8>,
    temporary: PathBuf,
}

impl Copier {
    pub(super) fn new(quarantine: &Path) -> Self {
        // git takes such a name for an object that is not finished.
        let temporary = quarantine.join(format!("tmp_obj_{}", std::process::id()));
        // A process of the same id may have died here; otherwise it is not there.
        let _ = std::fs::remove_file(&temporary);
        Self { inflate: Decompress::new(), input: vec![0; PIECE], output: vec![0; PIECE], temporary }
    }

    /// Copies an open file to `target` if it holds the object `name`.
    pub(super) fn copy(
        &mut self,
        source: &mut File,
        name: &ObjectId,
        target: &Path,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |error| WriteError::new(path, error)
        };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o400);
        let mut copy = options.open(&self.temporary).map_err(fail(&self.temporary))?;
        let outcome = self.pump(source, name, &mut copy, budget).map_err(fail(&self.temporary))?;
        drop(copy);
        if outcome == Outcome::Brought {
            std::fs::rename(&self.temporary, target).map_err(fail(target))?;
        } else {
            std::fs::remove_file(&self.temporary).map_err(fail(&self.temporary))?;
        }
        Ok(outcome)
    }

    /// Errors are those of writing the copy; a source that cannot be read is refused.
    fn pump(
        &mut self,
        source: &mut File,
        name: &ObjectId,
        copy: &mut File,
        budget: &mut Budget,
    ) -> std::io::Result<Outcome> {
        self.inflate.reset();
        let mut hasher = gix::hash::hasher(name.kind());
        let mut head = Vec::with_capacity(HEADER);
        // The object's whole length, header included, once the header was read.
        let mut length = None;
        let mut total = 0;
        let (mut at, mut end) = (0, 0);
        let mut starved = true;
        loop {
            if at == end && starved {
                (at, end) = (0, read(source, &mut self.input).unwrap_or(0));
                if end == 0 {
                    return Ok(Outcome::Refused);
                }
                let Some(left) = budget.disk.checked_sub(end as u64) else { return Ok(Outcome::Left) };
                budget.disk = left;
                copy.write_all(&self.input[..end])?;
            }
            let (taken, given) = (self.inflate.total_in(), self.inflate.total_out());
            let input = &self.input[at..end];
            let Ok(status) = self.inflate.decompress(input, &mut self.output, FlushDecompress::None) else {
                return Ok(Outcome::Refused);
            };
            let taken = usize::try_from(self.inflate.total_in() - taken).unwrap_or(input.len());
            let made = usize::try_from(self.inflate.total_out() - given).unwrap_or(0);
            at += taken;
            starved = made < self.output.len();
            if taken == 0 && made == 0 && at < end && status != Status::StreamEnd {
                return Ok(Outcome::Refused);
            }
            let output = &self.output[..made];
            hasher.update(output);
            total += made as u64;
            if length.is_none() {
                let wanted = (HEADER - head.len()).min(made);
                head.extend_from_slice(&output[..wanted]);
                match whole_length(&head) {
                    Some(Header::Length(whole)) if whole > budget.inflated => return Ok(Outcome::Left),
                    Some(Header::Length(whole)) => length = Some(whole),
                    Some(Header::TooLarge) => return Ok(Outcome::Left),
                    None if head.len() == HEADER => return Ok(Outcome::Refused),
                    None => {}
                }
            }
            if length.is_some_and(|length| total > length) {
                return Ok(Outcome::Refused);
            }
            if status == Status::StreamEnd {
                break;
            }
        }
        let ends_here = at == end && read(source, &mut self.input[..1]).is_ok_and(|count| count == 0);
        budget.inflated = budget.inflated.saturating_sub(total);
        // The hasher refuses content that was made for a SHA-1 collision.
        let honest = hasher.try_finalize().is_ok_and(|id| id == *name);
        let right = ends_here && length == Some(total) && honest;
        Ok(if right { Outcome::Brought } else { Outcome::Refused })
    }
}

fn read(source: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

enum Header {
    Length(u64),
    TooLarge,
}

/// Reads a header; `None` where it is none, or not yet whole.
fn whole_length(head: &[u8]) -> Option<Header> {
    let nul = head.iter().position(|byte| *byte == 0)?;
    let (kind, size) = std::str::from_utf8(&head[..nul]).ok()?.split_once(' ')?;
    // git reads digits only, and no leading zero.
    let plain = size.bytes().all(|byte| byte.is_ascii_digit()) && (size == "0" || !size.starts_with('0'));
    let size: u64 = if plain { size.parse().ok()? } else { return None };
    match kind {
        "commit" | "tree" | "tag" if size > HELD => Some(Header::TooLarge),
        "blob" | "commit" | "tree" | "tag" => Some(Header::Length(nul as u64 + 1 + size)),
        _ => None,
    }
}
