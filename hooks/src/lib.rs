//! git's bookkeeping around a turn: finding the repository, saying what has to be pinned, remembering what was
//! there, judging what is there afterwards, and putting back what a turn must not have changed.
//!
//! The attacker is the turn itself: it runs with the caller's uid and, under protection `shared`, writes the
//! host's common dir. Nothing here runs git, and nothing here believes what a repository says before it has
//! been read by [`read`].

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
pub mod process;
pub mod read;
pub mod roots;
pub mod shared;
pub mod text;
pub mod tree;

#[cfg(test)]
#[path = "../tests/fixture/mod.rs"]
mod fixture;
