//! What runs a bundle.

pub mod libcontainer;
