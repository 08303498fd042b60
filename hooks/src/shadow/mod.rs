//! Protection `shadow`: the turn is treated as an untrusted remote. The sandbox sees a private shadow of the common
//! dir; what the turn did there comes back by import: parsed, checked, compared and swapped, under git's own locks.
//!
//! The attacker is the turn: everything in the shadow may have been made by it, in any form. So no process of the host
//! ever runs git on a shadow; it is read with [`crate::read`], and only objects that were hashed and checked, and
//! values that were parsed, reach the host's repository.

pub mod git;
pub mod index;
pub mod objects;
