//! Why an index was refused.

use std::path::PathBuf;

use gix::bstr::BString;

use crate::read;

/// Why an index was not read, merged or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read, or is not a regular file of bearable size.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The file is not an index, or is damaged.
    #[error("{path}: {source}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: crate::index::Error,
    },
    /// An extension that git has to understand, and that this program does not.
    #[error("{path}: the index has the extension {name:?}, which is not known")]
    Extension {
        /// The file.
        path: PathBuf,
        /// The extension's signature.
        name: String,
    },
    /// The shared index that it builds upon (`core.splitIndex`) is not there or another one.
    #[error("{path}: {why}")]
    Shared {
        /// The shared index.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry that git does not write, or would not check out.
    #[error("{path}: the entry {entry:?} is refused: {why}")]
    Entry {
        /// The file.
        path: PathBuf,
        /// The entry's path.
        entry: BString,
        /// Why it is refused.
        why: String,
    },
    /// Beyond all measure.
    #[error("{path}: the paths in the index have more than {limit} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: usize,
    },
    /// A merge is unfinished in one of the indexes (stages 1 to 3): nothing can be merged.
    #[error("the {0} index has unmerged paths")]
    Unmerged(Side),
    /// The object ids are of different lengths.
    #[error("the indexes use different hash functions")]
    Hash,
    /// The session's index leaves out a directory (`index.sparse`) that the host's does not leave out.
    #[error("the session's index leaves out the directory {0:?}, which the host's checkout has")]
    Sparse(BString),
    /// The file's checksum cannot be computed: the content is a collision attack on SHA-1.
    #[error("the index cannot be written: its checksum is part of a collision attack")]
    Checksum,
    /// More entries, or longer paths, than the format can hold.
    #[error("the index cannot be written: it is too large")]
    TooLarge,
}

/// Which of the three indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What was last the same on both sides.
    Base,
    /// The side whose index is written, and which wins.
    Host,
    /// The side whose changes are taken over.
    Shadow,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Base => "base",
            Self::Host => "host's",
            Self::Shadow => "session's",
        })
    }
}
