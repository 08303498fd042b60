//! shim
fn main() {}
