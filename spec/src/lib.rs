//! What a turn is allowed to do, as data: the policy that a person wrote, the plan that it becomes on this
//! host, the OCI bundle that carries the plan to an executor, and the report that comes back.
//!
//! This crate holds data and pure functions. It makes no system call beyond reading files that it is
//! pointed at, starts nothing, and contains no unsafe code.

#![forbid(unsafe_code)]

pub mod audit;
pub mod bundle;
pub mod git;
pub mod host;
pub mod id;
pub mod mount;
pub mod network;
pub mod origin;
pub mod paths;
pub mod plan;
pub mod policy;
pub mod report;
pub mod secrets;
pub mod state;
