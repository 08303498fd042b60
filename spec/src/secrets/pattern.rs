//! Patterns of names, with `*` alone: simple enough to be judged at a glance.

/// Whether `name` matches `pattern`, in which each `*` stands for any characters, also none.
///
/// It takes at most the product of both lengths, whatever the pattern.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut from) = (0, 0);
    // Where the last `*` stands, and how much of the name it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, from));
            at += 1;
        } else if pattern.get(at) == Some(&name[from]) {
            at += 1;
            from += 1;
        } else if let Some((position, taken)) = star {
            star = Some((position, taken + 1));
            at = position + 1;
            from = taken + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("A", "A"),
            ("*", ""),
            ("*", "A"),
            ("A*", "A"),
            ("A*", "ABC"),
            ("*_SOCK", "SSH_AUTH_SOCK"),
            ("VSCODE_*IPC*", "VSCODE_GIT_IPC_HANDLE"),
            ("VSCODE_*IPC*", "VSCODE_IPC_HOOK_CLI"),
            ("*ab*ab", "xababab"),
            ("ä*", "äö"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("A", "AB"),
            ("A", ""),
            ("", "A"),
            ("*_SOCK", "SOCK"),
            ("*_SOCK", "A_SOCKS"),
            ("A*C", "ABD"),
            ("a", "A"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(!matches(&"*a".repeat(500), &"a".repeat(499)));
    }
}
