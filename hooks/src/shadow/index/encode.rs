//! From entries to the bytes of an index file.

use gix::bstr::BStr;

use super::{DIRECTORY, Entries, Error, INTENT_TO_ADD, SKIP_WORKTREE};

/// The index file, with no extension but the one that allows directories to be left out.
pub(super) fn bytes(entries: &Entries) -> Result<Vec<u8>, Error> {
    let count = u32::try_from(entries.len()).map_err(|_| Error::TooLarge)?;
    let extended = entries.entries.iter().any(|entry| entry.flags & (INTENT_TO_ADD | SKIP_WORKTREE) != 0);
    let version: u32 = match (entries.compressed, extended) {
        (true, _) => 4,
        (false, true) => 3,
        (false, false) => 2,
    };
    let hash = entries.kind.len_in_bytes();
    let mut out = Vec::with_capacity(64 + entries.paths.len() + entries.len() * (52 + hash));
    out.extend_from_slice(b"DIRC");
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    let mut previous = BStr::new("");
    for (path, entry) in entries.iter() {
        let start = out.len();
        out.extend_from_slice(&entry.stat.0[..24]);
        out.extend_from_slice(&entry.mode.to_be_bytes());
        out.extend_from_slice(&entry.stat.0[24..]);
        out.extend_from_slice(entry.id.as_slice());
        let high = (entry.flags >> 16) as u16;
        let length = path.len().min(0x0fff) as u16;
        let low = (entry.flags & 0xb000) as u16 | length | if high == 0 { 0 } else { 0x4000 };
        out.extend_from_slice(&low.to_be_bytes());
        if high != 0 {
            out.extend_from_slice(&high.to_be_bytes());
        }
        if entries.compressed {
            let common = previous.iter().zip(path.iter()).take_while(|(a, b)| a == b).count();
            varint(&mut out, previous.len() - common);
            out.extend_from_slice(&path[common..]);
            out.push(0);
            previous = path;
        } else {
            out.extend_from_slice(path);
            let size = (out.len() - start + 8) & !7;
            out.resize(start + size, 0);
        }
    }
    if entries.sparse || entries.entries.iter().any(|entry| entry.mode == DIRECTORY) {
        out.extend_from_slice(b"sdir\0\0\0\0");
    }
    if entries.unhashed {
        out.resize(out.len() + hash, 0);
    } else {
        let mut hasher = gix::hash::hasher(entries.kind);
        hasher.update(&out);
        let checksum = hasher.try_finalize().map_err(|_| Error::Checksum)?;
        out.extend_from_slice(checksum.as_slice());
    }
    Ok(out)
}

/// The variable-width number of gitformat-pack(5), "offset encoding".
fn varint(out: &mut Vec<u8>, mut value: usize) {
    let mut bytes = [0; 10];
    let mut at = bytes.len() - 1;
    bytes[at] = (value & 0x7f) as u8;
    loop {
        value >>= 7;
        if value == 0 {
            break;
        }
        value -= 1;
        at -= 1;
        bytes[at] = 0x80 | (value & 0x7f) as u8;
    }
    out.extend_from_slice(&bytes[at..]);
}
