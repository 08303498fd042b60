//! git's bookkeeping around a turn: finding the repository, saying what has to be pinned, remembering what was
//! there, judging what is there afterwards, and putting back what a turn must not have changed.
//!
//! The attacker is the turn itself: it runs with the caller's uid and, under protection `shared`, writes the
//! host's common dir. Nothing here runs git, and nothing here believes what a repository says before it has
//! been read by [`read`].
//!
//! In the order of a turn: [`layout::find`] (with roots that [`roots::validate`] accepted),
//! [`journal::Journal::begin`], [`folder::prepare`], [`shared::guard`], [`shared::baseline::capture`],
//! [`journal::Journal::store_baseline`], then the command runs, then [`finish::finish`]. The `poststop` hook calls
//! [`finish::bundle`], the next start [`finish::recover`], `codeoid-shim check` [`finish::check_now`].
//!
//! # What protection `shared` does not do
//!
//! - It undoes at the end; git on the host that runs while the turn lasts can meet what the turn planted.
//! - `HEAD`, the index, `locked` and logs are never put back, because they are byte for byte the same whether
//!   their owner or the turn wrote them. An index that would write outside its checkout, and a new nested
//!   repository in one, are reported with the command that takes the danger away.
//! - Branches can be moved and deleted; `shallow` and recorded resolutions of conflicts are reported only.
//! - Loose objects that are new are hashed again, up to a bound; objects in packs are not.
//! - Replacement refs in `reftable/` are not seen.
//! - Nested repositories in a checkout are looked for in some hundred directories, and reported only.
//! - Hooks that lie outside the git dir (`core.hooksPath`, symlinks) are not judged; [`shared::limits`] names them.
//! - An `exec` line that a turn leaves in a rebase becomes `noop`, in the session's own worktrees as well.

#![forbid(unsafe_code)]

pub mod audit;
pub mod bytes;
pub mod config;
pub mod entry;
pub mod finish;
pub mod folder;
pub mod index;
pub mod journal;
pub mod layout;
pub mod lock;
pub mod os;
pub mod process;
pub mod read;
pub mod roots;
pub mod shadow;
pub mod shared;
pub mod text;
pub mod tree;

#[cfg(test)]
#[path = "../tests/fixture/mod.rs"]
mod fixture;
