//! Parser, schema and documentation say the same.

use std::collections::BTreeSet;
use std::path::Path;

use codeoid_spec::policy::{self, DEFAULT_PROTECTION, Key, Kind, Layer};
use serde_json::{Value, json};

const DOCUMENT: &str = include_str!("../../docs/configuration.md");

/// The example in the documentation.
fn example() -> &'static str {
    let (_, rest) = DOCUMENT.split_once("```json\n").expect("there is an example");
    rest.split_once("```").expect("it ends").0
}

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&policy::schema()).expect("the schema is one")
}

/// The keys that a table of the schema allows, with their paths.
fn keys(schema: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        into.insert(prefix.to_owned());
        return;
    };
    assert_eq!(schema["additionalProperties"], json!(false), "{prefix} allows unknown keys");
    for (name, property) in properties {
        assert!(property["description"].is_string(), "{prefix}.{name} has no description");
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        keys(property, &path, into);
    }
}

fn parser_keys() -> BTreeSet<String> {
    Key::ALL.iter().filter_map(|key| key.path()).map(str::to_owned).collect()
}

/// A value that the parser takes for this key.
fn good(key: Key) -> Value {
    match key.kind() {
        Kind::Words(words) | Kind::WordsOrSwitch(words) => json!(words[0]),
        Kind::Switch => json!(true),
        Kind::Text => json!("a"),
        Kind::Path => json!("/a"),
        Kind::Size => json!("512M"),
        Kind::Duration => json!("90s"),
        Kind::Count => json!(5),
        Kind::Number => json!(0.5),
        Kind::Paths => json!(["/a", "~/b"]),
        Kind::Texts => json!(["a.org"]),
        Kind::Assignments => json!({"NAME": "value"}),
        Kind::Fallbacks => json!({"limits.memory": "weaker"}),
    }
}

/// A file in which one key has this value.
fn file(path: &str, value: Value) -> Value {
    let inner = path.rsplit('.').fold(value, |value, name| json!({ name: value }));
    json!({ "sandbox": inner })
}

fn parse(file: &Value) -> Result<Layer, policy::Error> {
    Layer::from_file(Path::new("/c.json"), &file.to_string())
}

#[test]
fn the_schema_has_the_parsers_keys() {
    let mut found = BTreeSet::new();
    keys(&policy::schema()["properties"]["sandbox"], "", &mut found);
    assert_eq!(found, parser_keys());
}

#[test]
fn the_example_is_complete_and_accepted_by_schema_and_parser() {
    let example: Value = serde_json::from_str(example()).unwrap();
    validator().validate(&example).unwrap();
    parse(&example).unwrap();
    for path in parser_keys() {
        let value = path.split('.').fold(&example["sandbox"], |value, name| &value[name]);
        assert!(!value.is_null(), "the example lacks {path}");
    }
}

#[test]
fn schema_and_parser_accept_and_refuse_the_same_types() {
    let validator = validator();
    let values = [
        json!(null),
        json!(true),
        json!("x/y z"),
        json!(-1),
        json!(0.25),
        json!(7),
        json!([]),
        json!([1]),
        json!({}),
        json!({"NAME": 1}),
    ];
    for (key, path) in Key::ALL.iter().filter_map(|key| key.path().map(|path| (*key, path))) {
        let accepted = file(path, good(key));
        parse(&accepted).unwrap_or_else(|error| panic!("{error}"));
        assert!(validator.is_valid(&accepted), "{accepted}");
        for value in &values {
            let candidate = file(path, value.clone());
            let schema = validator.is_valid(&candidate);
            match parse(&candidate) {
                Ok(_) => assert!(schema, "only the parser takes {candidate}"),
                Err(policy::Error::Type { .. }) => assert!(!schema, "only the schema takes {candidate}"),
                // The schema knows types and words, and not every rule for what is inside a string.
                Err(_) => {}
            }
        }
        let Some((group, _)) = path.rsplit_once('.') else { continue };
        let unknown = file(&format!("{group}.colour"), json!(1));
        assert!(parse(&unknown).is_err() && !validator.is_valid(&unknown), "{unknown}");
    }
    let others = json!({"theme": "dark", "sandbox": {}});
    assert!(parse(&others).is_ok() && validator.is_valid(&others));
}

#[test]
fn every_key_option_and_variable_is_documented() {
    let rows: Vec<Vec<&str>> = DOCUMENT
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("| –"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), Key::ALL.len(), "a row for each option");
    for (row, key) in rows.iter().zip(Key::ALL) {
        let cell = |name: Option<&str>| name.map_or("–".to_owned(), |name| format!("`{name}`"));
        assert_eq!(row[0], cell(key.option()), "{key:?}");
        assert_eq!(row[1], cell(key.path()), "{key:?}");
        // A standing confirmation is refused; its variable is known only to say so.
        let variable = key.variable().filter(|_| *key != Key::ConfirmWidening);
        assert_eq!(row[2], cell(variable.as_deref()), "{key:?}");
        if let Kind::Words(words) | Kind::WordsOrSwitch(words) = key.kind() {
            for word in words {
                assert!(row[3].contains(&format!("`{word}`")), "{key:?} lacks {word}");
            }
        }
    }
}

#[test]
fn no_variable_is_documented_that_there_is_not() {
    let known: BTreeSet<String> = Key::ALL.iter().filter_map(|key| key.variable()).collect();
    let named = DOCUMENT.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| {
        word.len() > policy::VARIABLE_PREFIX.len() && word.starts_with(policy::VARIABLE_PREFIX)
    });
    for word in named {
        assert!(known.contains(word), "{word}");
    }
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let context = policy::Context { cwd: "/w".into(), home: "/home/u".into() };
    let policy = policy::resolve(Layer::default(), Layer::default(), None, &context).unwrap();
    let schema = policy::schema();
    let sandbox = &schema["properties"]["sandbox"]["properties"];
    for (option, default, description) in [
        ("--session", policy.session.value.to_string(), None),
        ("--executor", policy.executor.value.to_string(), Some(&sandbox["executor"])),
        ("--network", policy.network.value.to_string(), Some(&sandbox["network"]["properties"]["mode"])),
        (
            "--docker-socket",
            policy.docker_socket.value.to_string(),
            Some(&sandbox["docker"]["properties"]["socket"]),
        ),
        (
            "--git-protection",
            DEFAULT_PROTECTION.as_str().to_owned(),
            Some(&sandbox["git"]["properties"]["protection"]),
        ),
        ("--home", policy.home.value.to_string(), Some(&sandbox["home"])),
    ] {
        let row = DOCUMENT.lines().find(|line| line.starts_with(&format!("| `{option}` |"))).unwrap();
        assert!(row.ends_with(&format!("| `{default}` |")), "{row}");
        if let Some(description) = description {
            let text = description["description"].as_str().unwrap();
            assert!(text.contains(&format!("(default: {default})")), "{text}");
        }
    }
}
