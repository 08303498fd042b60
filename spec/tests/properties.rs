//! Whatever comes from outside: no panic, positions that lie inside the text, names that are safe.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use codeoid_spec::id::{MAX_SESSION_ID, SessionId, slug};
use codeoid_spec::policy::{self, Context, Error, Key, Layer, Place, resolve};
use codeoid_spec::secrets;
use proptest::prelude::*;

/// A file that uses every kind of value, to be damaged.
const VALID: &str = r#"{"other": [1, {"a": null}],
 "sandbox": {"executor": "auto", "network": {"mode": "allowlist", "allow": ["a.org:443"]},
  "sockets": ["/s"], "docker": {"socket": true, "images": ["a:1"]}, "worktreeRoots": ["~/w"],
  "env": {"pass": ["A"], "drop": ["B_*"], "set": {"Ä": "ö😀"}},
  "limits": {"memory": "1G", "cpus": 1.5, "pids": 5, "timeout": "5m"}, "fallback": {"hide": "weaker"}}}"#;

/// Line and column of an error, where it has them.
fn position(error: &Error) -> Option<(u32, u32)> {
    match error {
        Error::Syntax { line, column, .. } | Error::FileEncoding { line, column, .. } => {
            Some((*line, *column))
        }
        Error::Value { place, .. }
        | Error::Type { place, .. }
        | Error::UnknownKey { place, .. }
        | Error::DuplicateKey { place, .. } => match place {
            Place::Key { line, column, .. } => Some((*line, *column)),
            _ => None,
        },
        _ => None,
    }
}

/// Parses, and checks what an error says about the text.
fn judge(text: &str) -> Result<Layer, Error> {
    let result = Layer::from_file(Path::new("/c.json"), text);
    if let Err(error) = &result {
        let message = error.to_string();
        assert!(message.starts_with("/c.json:"), "{message}");
        assert!(!message.contains(|c: char| c.is_control()), "{message:?}");
        let _ = error.hint();
        if let Some((line, column)) = position(error) {
            let line = text.split('\n').nth(line as usize - 1).expect("the line is in the text");
            // One after the last character: the end of the line, where something is missing.
            let width = line.chars().count() + 1;
            assert!((1..=width).contains(&(column as usize)), "{column} of {width}: {message}");
        } else {
            assert!(matches!(error, Error::FileEmpty { .. } | Error::ByteOrderMark { .. }), "{message}");
        }
    }
    result
}

/// Text of the pieces that configuration files are made of.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just("[".to_owned()),
        Just("]".to_owned()),
        Just(":".to_owned()),
        Just(",".to_owned()),
        Just("\n".to_owned()),
        Just(r#""\ud800""#.to_owned()),
        Just(r#""sandbox""#.to_owned()),
        Just(r#""network""#.to_owned()),
        Just(r#""mode""#.to_owned()),
        Just(r#""hide""#.to_owned()),
        Just("null".to_owned()),
        Just("1e999".to_owned()),
        "\"\\PC{0,3}\"",
        "\\PC",
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_text_is_judged(text in "(?s).{0,200}") {
        let _ = judge(&text);
    }

    #[test]
    fn any_text_of_json_is_judged(text in pieces()) {
        let _ = judge(&text);
        let _ = judge(&format!("{{\"sandbox\": {text}}}"));
    }

    #[test]
    fn a_damaged_file_is_judged(
        at in 0..VALID.len(), length in 0_usize..20, instead in "(?s).{0,4}"
    ) {
        let boundary = |at: usize| (at..=VALID.len()).find(|at| VALID.is_char_boundary(*at)).unwrap();
        let (start, end) = (boundary(at), boundary((at + length).min(VALID.len())));
        let text = format!("{}{instead}{}", &VALID[..start], &VALID[end..]);
        if let Ok(layer) = judge(&text) {
            let context = Context { cwd: "/w".into(), home: "/h".into() };
            let policy = resolve(Layer::default(), Layer::default(), Some(layer), &context).unwrap();
            for path in policy.hide.iter().chain(&policy.read).chain(&policy.sockets) {
                prop_assert!(path.value.is_absolute());
            }
        }
    }

    #[test]
    fn any_file_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        std::fs::write(&path, &bytes).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        match policy::read_config(&path) {
            Ok(read) => {
                let (_, text) = read.expect("it is there");
                prop_assert_eq!(text.as_bytes(), &bytes);
            }
            Err(error) => {
                let text = String::from_utf8_lossy(&bytes);
                let (line, column) = position(&error).expect("only the encoding can be wrong");
                let line = text.split('\n').nth(line as usize - 1).expect("the line is in the text");
                prop_assert!((1..=line.chars().count()).contains(&(column as usize)));
            }
        }
    }

    #[test]
    fn any_value_is_taken_or_refused(key in 0..Key::ALL.len(), bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let key = Key::ALL[key];
        let mut layer = Layer::default();
        if let Err(error) = layer.flag(key, OsString::from_vec(bytes.clone())) {
            prop_assert!(!error.to_string().contains(|c: char| c.is_control()), "{:?}", error.to_string());
        }
        if let Some(name) = key.variable() {
            let _ = Layer::from_environment([(name.into(), OsString::from_vec(bytes))]);
        }
    }

    #[test]
    fn any_word_is_taken_or_refused(key in 0..Key::ALL.len(), text in "[-+~/.:0-9a-zA-Z=\\[\\]]{0,20}") {
        let key = Key::ALL[key];
        let mut layer = Layer::default();
        let _ = layer.flag(key, &text);
    }

    #[test]
    fn any_variable_is_known_or_refused(name in "CODEOID_SANDBOX_\\PC{0,20}") {
        let known = Key::ALL.iter().any(|key| key.variable().as_deref() == Some(name.as_str()));
        let result = Layer::from_environment([(OsString::from(&name), OsString::from("1"))]);
        let refused = matches!(result, Err(Error::UnknownVariable { .. }));
        prop_assert_eq!(refused, !known);
    }

    #[test]
    fn a_destination_reads_as_it_is_written(text in "[0-9a-fA-F.:\\[\\]*/-]{0,24}") {
        if let Ok(destination) = text.parse::<policy::Destination>() {
            prop_assert_eq!(destination.to_string().parse(), Ok(destination));
        }
    }

    #[test]
    fn sizes_and_durations_are_never_zero(text in "[0-9]{0,12}[.]?[0-9]{0,3}[a-zA-Z]{0,4}") {
        if let Ok(bytes) = policy::value::size(&text) {
            prop_assert!(bytes > 0);
        }
        if let Ok(duration) = policy::value::duration(&text) {
            prop_assert!(!duration.is_zero());
        }
    }

    #[test]
    fn what_is_hidden_stays_hidden(low in paths(), middle in paths(), high in paths()) {
        let layer = |hidden: &[String]| {
            let mut layer = Layer::default();
            for path in hidden {
                layer.flag(Key::Hide, path).unwrap();
                // None of these takes anything back.
                layer.flag(Key::Read, "").unwrap();
                layer.flag(Key::Write, path).unwrap();
            }
            layer
        };
        let context = Context { cwd: "/w".into(), home: "/h".into() };
        let policy = resolve(layer(&high), layer(&middle), Some(layer(&low)), &context).unwrap();
        for path in low.iter().chain(&middle).chain(&high) {
            prop_assert!(policy.hide.iter().any(|hidden| hidden.value == Path::new(path)), "{path}");
        }
    }

    #[test]
    fn patterns_mean_what_they_say(pattern in "[ab*]{0,8}", name in "[ab]{0,8}") {
        prop_assert_eq!(secrets::matches(&pattern, &name), matches_by_the_book(&pattern, &name));
    }

    #[test]
    fn the_home_is_never_hidden(value in "(/[a-z.]{1,4}){0,4}", home in "(/[a-z][a-z.]{0,3}){1,3}") {
        for place in secrets::places(Path::new(&home), |_| Some(OsString::from(&value))) {
            prop_assert!(place.path.is_absolute());
            prop_assert!(!Path::new(&home).starts_with(&place.path), "{place:?}");
        }
    }

    #[test]
    fn a_session_id_is_safe_wherever_it_goes(text in "\\PC{0,12}|[._:@+a-z-]{0,140}") {
        let Ok(id) = text.parse::<SessionId>() else { return Ok(()) };
        prop_assert_eq!(id.as_str(), &text);
        prop_assert!(!text.is_empty() && text.len() <= MAX_SESSION_ID);
        prop_assert!(!text.contains(['/', ' ']) && !text.starts_with(['.', '-']) && text.is_ascii());
        for name in [id.directory_name(), id.worktree_folder(Path::new("/r/.git"))] {
            is_plain(&name)?;
        }
        let json = serde_json::to_string(&id).unwrap();
        prop_assert_eq!(serde_json::from_str::<SessionId>(&json).unwrap(), id);
    }

    #[test]
    fn two_sessions_never_share_a_folder(
        one in "[a-z.:@-]{0,6}", two in "[a-z.:@-]{0,6}", repository in "(/[a-z]{1,3}){1,3}"
    ) {
        let (Ok(one), Ok(two)) = (one.parse::<SessionId>(), two.parse::<SessionId>()) else { return Ok(()) };
        let repository = PathBuf::from(repository);
        let same = one.worktree_folder(&repository) == two.worktree_folder(&repository);
        prop_assert_eq!(same, one == two);
        prop_assert_ne!(one.worktree_folder(&repository), one.worktree_folder(&repository.join(".git")));
    }

    #[test]
    fn a_slug_is_a_plain_name(name in "(?s).{0,80}|[.a-k-]{0,50}(\\.lock){0,3}[.-]{0,3}") {
        is_plain(&slug(&name))?;
    }
}

fn paths() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec("(/[ab]){1,3}", 0..4)
}

/// A name that is one component of a path, no option, no hidden file, and fit for a ref (git-check-ref-format(1)).
fn is_plain(name: &str) -> Result<(), TestCaseError> {
    prop_assert!(!name.is_empty() && name.len() < 64, "{name:?}");
    prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "{name:?}");
    prop_assert!(
        !name.starts_with(['.', '-']) && !name.ends_with('.') && !name.ends_with(".lock"),
        "{name:?}"
    );
    prop_assert!(!name.contains(".."), "{name:?}");
    Ok(())
}

/// The definition, without any cleverness.
fn matches_by_the_book(pattern: &str, name: &str) -> bool {
    match pattern.chars().next() {
        None => name.is_empty(),
        Some('*') => (0..=name.len()).any(|at| matches_by_the_book(&pattern[1..], &name[at..])),
        Some(c) => name.starts_with(c) && matches_by_the_book(&pattern[1..], &name[1..]),
    }
}
