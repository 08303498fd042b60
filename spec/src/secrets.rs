//! stub, replaced by the secrets work
/// stub
pub struct EnvRule { /// why
 pub why: &'static str }
/// stub
pub fn env_verdict(_: &str, _: bool) -> Option<&'static EnvRule> { None }
