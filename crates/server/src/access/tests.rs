//! Keys, restrictions, lanes, owners and control, as flags and files set them.

use axum::http::{Extensions, HeaderName, Uri};

use super::*;
use crate::owners::ADMINISTRATOR;

fn access(keys: &[&str], restrictions: &[&str]) -> Access {
    let api_keys = keys.iter().map(|key| key.parse().unwrap()).collect();
    let http_restricted_apis = restrictions.iter().map(|text| text.parse().unwrap()).collect();
    new(&AccessArgs { api_keys, http_restricted_apis, ..AccessArgs::default() })
}

fn new(args: &AccessArgs) -> Access {
    Access::new(args, &[]).unwrap()
}

fn check(access: &Access, category: Category, headers: &[(&'static str, &'static str)]) -> Result<(), Denied> {
    let parsed = headers.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let (headers, rule) = (parsed.collect(), Rule { category: Some(category), changes: Changes::Never });
    let uri = Uri::default();
    let sender = Sender::of(&uri, &headers, &Extensions::new());
    let proven = access.admit(rule, &sender, PortRules { restrictions: access, has_pages: true })?;
    assert_eq!(proven, None, "nobody asks");
    Ok(())
}

#[test]
fn any_of_the_keys_admits_and_health_needs_none() {
    let access = access(&["one", "two"], &[]);
    for headers in [
        [("authorization", "Bearer two")],
        [("authorization", "bearer one")],
        [("x-api-key", "one")],
        // Azure's clients.
        [("api-key", "one")],
    ] {
        assert_eq!(check(&access, Category::Inference, &headers), Ok(()));
    }
    for headers in [[("authorization", "Bearer tw")], [("authorization", "Basic one")], [("x-api-key", "")]] {
        assert_eq!(check(&access, Category::Inference, &headers), Err(Denied::Key));
    }
    assert_eq!(check(&access, Category::Metadata, &[]), Err(Denied::Key));
    assert_eq!(check(&access, Category::Health, &[]), Ok(()));
    for authorization in ["Bearer of-a-proxy", "Basic dXNlcg==", "Bearer one"] {
        let both = [("authorization", authorization), ("x-api-key", "two")];
        assert_eq!(check(&access, Category::Inference, &both), Ok(()), "{authorization}");
    }
    assert!(!format!("{access:?}").contains("\"one\""));
}

#[test]
fn keys_of_a_file_have_owners_roles_and_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let entry = |owner: &str, role, expires: Option<&str>| KeyEntry {
        owner: owner.to_owned(),
        role,
        sha256: KeyDigest::of(format!("the key of {owner}")),
        created: None,
        expires: expires.map(|time| time.parse().unwrap()),
    };
    let keys = vec![
        entry("alice", Role::Live, Some("2999-01-01T00:00:00Z")),
        entry("nightly", Role::Bulk, None),
        entry("root", Role::Admin, None),
        entry("past", Role::Live, Some("2020-01-01T00:00:00Z")),
    ];
    KeyFile::change(&path, |file| {
        file.keys = keys;
        Ok(())
    })
    .unwrap();
    let args = AccessArgs { api_key_file: Some(path.clone()), ..AccessArgs::default() };
    let access = new(&args);
    let of = |owner: &str| {
        let key = format!("the key of {owner}");
        let header = |name: &str| (name == "x-api-key").then_some(key.as_bytes());
        access
            .check_key(header)
            .map(|()| (access.owner(header).map(|owner| owner.to_string()), access.account(header).lane))
    };
    assert_eq!(of("alice"), Ok((Some("alice".to_owned()), Lane::Live)));
    assert_eq!(of("nightly"), Ok((Some("nightly".to_owned()), Lane::Bulk)));
    assert_eq!(of("root"), Ok((None, Lane::Live)));
    assert_eq!(of("past"), Err(Denied::Key), "it has expired");
    KeyFile::change(&path, |file| {
        file.keys.clear();
        Ok(())
    })
    .unwrap();
    access.take_over(&new(&args));
    assert_eq!(of("alice"), Err(Denied::Key), "a file without keys admits nobody");
    std::fs::remove_file(&path).unwrap();
    assert!(format!("{:#}", Access::new(&args, &[]).unwrap_err()).starts_with("--api-key-file: the file of keys"));
}

#[test]
fn an_owner_has_limits_of_the_file_or_the_flag_and_counts_stay_when_they_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let of_file = |limits: &str| {
        let owners = [("bob".to_owned(), limits.parse().unwrap())].into();
        KeyFile::change(&path, |file| {
            *file = KeyFile { owners, ..KeyFile::default() };
            Ok(())
        })
        .unwrap();
    };
    of_file("rpm=7");
    let owned = |text: &str| text.parse().unwrap();
    let args = AccessArgs {
        api_keys: vec![owned("alice=a"), owned("bob=b"), owned("carol=c")],
        admin_api_keys: vec!["admin".parse().unwrap()],
        owners: ["alice:rpm=2", "bob:rpm=1", "*:in-flight=3"].map(|rule| rule.parse().unwrap()).to_vec(),
        api_key_file: Some(path.clone()),
        ..AccessArgs::default()
    };
    let access = new(&args);
    let of = |key: &'static str| access.account(|name| (name == "x-api-key").then_some(key.as_bytes()));
    let limits = |key| of(key).limits.to_string();
    assert_eq!(["a", "b", "c", "admin"].map(limits), ["rpm=2", "rpm=7", "in-flight=3", ""]);
    assert_eq!(&**of("admin").owner.name(), ADMINISTRATOR);
    of("a").begin(true, 0).unwrap().end(0);
    of_file("tpm=5");
    access.take_over(&new(&args));
    assert_eq!(limits("b"), "tpm=5");
    assert_eq!(of("a").requests().unwrap().remaining, 1, "the request before counts");
    let twice = AccessArgs { owners: [args.owners[0].clone(), args.owners[0].clone()].to_vec(), ..args };
    assert!(Access::new(&twice, &[]).unwrap_err().to_string().contains("--owner names 'alice' more than once"));
}

#[test]
fn all_clones_have_the_keys_that_replace_others() {
    let first = access(&["one"], &["statistics:x-a=b"]);
    let clone = first.clone();
    first.take_over(&access(&["two"], &[]));
    for access in [&first, &clone] {
        assert_eq!(check(access, Category::Statistics, &[("x-api-key", "one")]), Err(Denied::Key));
        assert_eq!(check(access, Category::Statistics, &[("x-api-key", "two")]), Ok(()));
    }
}

#[test]
fn a_key_or_a_header_chooses_the_bulk_lane() {
    let [api_keys, bulk_api_keys] = ["live", "bulk"].map(|key| vec![key.parse().unwrap()]);
    let access = new(&AccessArgs { api_keys, bulk_api_keys, ..AccessArgs::default() });
    let of = |headers: &[(&str, &'static str)]| {
        let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_bytes());
        (access.check_key(header), access.account(header).lane)
    };
    assert_eq!(of(&[("x-api-key", "live")]), (Ok(()), Lane::Live));
    assert_eq!(of(&[("authorization", "Bearer bulk")]), (Ok(()), Lane::Bulk));
    assert_eq!(of(&[("x-api-key", "live"), ("priority", "u=7, i")]), (Ok(()), Lane::Bulk));
    assert_eq!(of(&[("x-api-key", "bulk"), ("priority", "u=0")]), (Ok(()), Lane::Bulk), "a key has the last word");
    assert_eq!(of(&[("x-api-key", "other")]).0, Err(Denied::Key));
}

#[test]
fn restricted_categories_want_their_header() {
    let access = access(&[], &["health,inference:X-Admin=s3=cret"]);
    assert_eq!(check(&access, Category::Health, &[]), Err(Denied::Restricted("x-admin".to_owned())));
    assert_eq!(check(&access, Category::Inference, &[("x-admin", "s3=cret")]), Ok(()));
    assert!(check(&access, Category::Inference, &[("x-admin", "s3=cret2")]).is_err());
    assert_eq!(check(&access, Category::Metadata, &[]), Ok(()));
}

/// Whether a request with this key may change a server with these flags.
fn may(args: &AccessArgs, is_local: bool, category: Category, key: &'static str) -> Result<(), ControlRefused> {
    let access = new(args);
    let header = |name: &str| (name == "x-api-key").then_some(key.as_bytes());
    access.check_control(Credentials {
        is_local,
        is_proven: access.is_administrator(header) || access.restricts(category),
    })
}

/// Whether a request with this header is proven at a port with `restrictions` of its own, which no page asks.
fn ask(
    access: &Access,
    restrictions: &Access,
    rule: Rule,
    header: (&'static str, &'static str),
) -> Result<bool, Denied> {
    let headers = [header].map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers = headers.into_iter().collect();
    let uri = Uri::default();
    let sender = Sender::of(&uri, &headers, &Extensions::new());
    let proven = access.admit(rule, &sender, PortRules { restrictions, has_pages: false })?;
    Ok(proven.is_some_and(|proven| proven.is_proven))
}

#[test]
fn a_port_has_restrictions_of_its_own_and_a_message_may_say_whether_it_changes_the_server() {
    let keyed = access(&["alice=one"], &[]);
    let restrictions = Access::restricting(vec!["logging,trace:x-admin=secret".parse().unwrap()]);
    let open = new(&AccessArgs::default());
    let rule = |category, changes| Rule { category, changes };
    let key = ("x-api-key", "one");
    // A category is missing where there is no such method: only the key counts.
    assert_eq!(ask(&keyed, &restrictions, rule(None, Changes::Never), key), Ok(false));
    assert_eq!(ask(&keyed, &restrictions, rule(None, Changes::Never), ("x-api-key", "two")), Err(Denied::Key));
    let host = ("host", "models.example.org");
    assert_eq!(ask(&open, &restrictions, rule(Some(Category::Inference), Changes::Never), host), Ok(false), "no page");
    let logging = |changes| rule(Some(Category::Logging), changes);
    let restricted = Err(Denied::Restricted("x-admin".to_owned()));
    assert_eq!(ask(&open, &restrictions, logging(Changes::ByMessage), host), restricted);
    for changes in [Changes::ByMessage, Changes::Always] {
        assert_eq!(ask(&open, &restrictions, logging(changes), ("x-admin", "secret")), Ok(true));
    }
    let load = |changes| rule(Some(Category::ModelRepository), changes);
    assert_eq!(ask(&keyed, &restrictions, load(Changes::ByMessage), key), Ok(false), "its message is not read yet");
    let refused = Err(Denied::Control(ControlRefused::Remote));
    assert_eq!(ask(&keyed, &restrictions, load(Changes::Always), key), refused);
}

#[test]
fn the_server_is_changed_from_its_own_host_or_with_an_administrators_key() {
    let open =
        AccessArgs { http_restricted_apis: vec!["logging:x-admin=secret".parse().unwrap()], ..AccessArgs::default() };
    assert_eq!(may(&open, true, Category::ModelRepository, ""), Ok(()));
    assert_eq!(may(&open, false, Category::ModelRepository, ""), Err(ControlRefused::Remote));
    assert_eq!(may(&open, false, Category::Logging, ""), Ok(()), "it carried the header");
    let keys = AccessArgs {
        api_keys: vec!["alice=a".parse().unwrap()],
        bulk_api_keys: vec!["bulk".parse().unwrap()],
        ..AccessArgs::default()
    };
    for key in ["a", "bulk"] {
        let found = may(&keys, false, Category::ModelRepository, key);
        assert_eq!(found, Err(ControlRefused::Remote), "a client's key proves nothing");
    }
    let kept = AccessArgs { admin_api_keys: vec!["admin".parse().unwrap()], ..keys };
    for is_local in [false, true] {
        for key in ["a", "bulk", ""] {
            let found = may(&kept, is_local, Category::Logging, key);
            assert_eq!(found, Err(ControlRefused::NoAdministrator), "{key}");
        }
        assert_eq!(may(&kept, is_local, Category::Logging, "admin"), Ok(()));
    }
    let any = AccessArgs { control_access: ControlAccess::Any, ..kept.clone() };
    assert_eq!(may(&any, false, Category::ModelRepository, "a"), Ok(()));
    let none = AccessArgs { control_access: ControlAccess::None, ..kept };
    assert_eq!(may(&none, true, Category::ModelRepository, "admin"), Err(ControlRefused::Everybody));
    assert!(ControlRefused::Remote.to_string().contains("--control-access=any"), "the refusal names the flag");
}

#[test]
fn faulty_restrictions_are_refused() {
    for text in ["health", "health:key", "nothing:key=value", "health:=value", "health:a b=value", "health:key="] {
        assert!(text.parse::<Restriction>().is_err(), "{text}");
    }
    let twice = ["health:a=b", "metadata,health:c=d"].map(|text| text.parse().unwrap());
    let args = AccessArgs { http_restricted_apis: twice.to_vec(), ..AccessArgs::default() };
    assert!(Access::new(&args, &[]).unwrap_err().to_string().contains("'health' more than once"));
}

#[test]
fn a_key_says_whose_request_it_is() {
    let owned = |text: &str| -> Given<OwnedKey> { text.parse().unwrap() };
    let args = AccessArgs {
        api_keys: vec![owned("alice=a"), owned("alice=b"), owned("bob=c")],
        admin_api_keys: vec!["admin".parse().unwrap()],
        ..AccessArgs::default()
    };
    let access = new(&args);
    let owner = |key: &'static str| access.owner(|name| (name == "x-api-key").then_some(key.as_bytes()));
    for (key, expected) in [("a", Some("alice")), ("b", Some("alice")), ("c", Some("bob")), ("admin", None)] {
        assert_eq!(owner(key).as_deref(), expected, "{key}");
    }
    assert_eq!(Access::default().owner(|_| None).as_deref(), Some(""));
}
