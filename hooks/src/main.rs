//! hook
fn main() {}
