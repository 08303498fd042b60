//! Protection `shared`: the sandbox writes the host's common dir.

pub(crate) mod keys;
