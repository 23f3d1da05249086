//! The remedies for a command that does not reach a broker, by the libraries' words for the fault.

/// The fault of a server that does not greet.
const SILENT: &str = "expected INFO, got nothing";

/// Words of a fault, and its remedy.
const REMEDIES: [(&str, &str); 9] = [
    (
        SILENT,
        "a server whose tls block has handshake_first needs --nats-tls-first; another program is no broker: name its address by --nats-url",
    ),
    ("Connection refused", "start the broker there (nats-server -js), or name its address by --nats-url"),
    ("failed to lookup address", "no host has this name here: name the broker's address by --nats-url"),
    (
        "InvalidContentType",
        "the broker speaks no TLS there: write nats:// in place of tls://, and leave --nats-tls-ca and --nats-tls-first out",
    ),
    ("UnknownIssuer", "name the authority that has issued the broker's certificate by --nats-tls-ca"),
    (
        "NotValidForName",
        "the broker's certificate is for another name: ask it by that name in --nats-url, or issue one for this name",
    ),
    ("certificate expired", "renew the broker's certificate"),
    ("CertificateRequired", "the broker asks for a certificate: give --nats-tls-cert and --nats-tls-key"),
    (
        "authorization violation",
        "correct the user or its secret: --nats-user with --nats-password-file, --nats-credentials, --nats-nkey or --nats-token-file",
    ),
];

/// The fault with its remedy, if one is known. `is_first` says whether the connection is encrypted before the broker greets.
pub fn with_remedy(fault: String, is_first: bool) -> String {
    let is_tried = |words: &str| is_first && words == SILENT;
    match REMEDIES.iter().find(|(words, _)| fault.contains(words) && !is_tried(words)) {
        Some((_, remedy)) => format!("{fault}; {remedy}"),
        None => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_names_what_to_write() {
        let named = |fault: &str| with_remedy(fault.to_owned(), false);
        assert_eq!(named("a fault of its own"), "a fault of its own");
        for (words, remedy) in REMEDIES {
            assert_eq!(named(&format!("IO error: {words} (1)")), format!("IO error: {words} (1); {remedy}"));
            assert!(remedy.contains("--nats-") || remedy.contains("renew"), "{remedy}");
        }
        assert_eq!(with_remedy(SILENT.to_owned(), true), SILENT, "it was tried");
    }
}
