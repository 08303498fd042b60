//! Text for people that has somebody else's bytes in it. A file name may hold the control sequences of a
//! terminal; none of them may reach one.

use std::path::{Path, PathBuf};

/// The text with every control character escaped.
#[must_use]
pub fn printable(text: &str) -> String {
    // The bidirectional controls reorder what is shown (CVE-2021-42574).
    let hidden = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.chars().any(hidden) {
        return text.to_owned();
    }
    let mut result = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if hidden(c) { result.extend(c.escape_default()) } else { result.push(c) }
    }
    result
}

/// A path that any report can carry: what is not UTF-8 in it is replaced.
#[must_use]
pub fn reportable(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(_) => path.to_owned(),
        None => PathBuf::from(path.to_string_lossy().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal() {
        assert_eq!(printable("plain ü"), "plain ü");
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{202e}"), "a\\u{1b}[2Jb\\nc\\u{202e}");
    }
}
