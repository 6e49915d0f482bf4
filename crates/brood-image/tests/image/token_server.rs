//! A server of bearer tokens, as big registries have one: it checks a password and signs what the registry then believes.
//!
//! Keys and signatures are openssl's, so that the registry's own verification decides whether a pull succeeds.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::images::need;
use crate::support::run;

pub const ISSUER: &str = "brood-test-issuer";
pub const SERVICE: &str = "brood-test-registry";

pub struct TokenServer {
    pub address: SocketAddr,
    pub certificate: PathBuf,
    /// Tokens handed out.
    pub issued: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Signer {
    key: PathBuf,
    certificate: PathBuf,
    /// `user:password`, as basic authentication sends it.
    login: String,
}

impl TokenServer {
    pub fn start(dir: &Path, user: &str, password: &str) -> Self {
        need("openssl", "openssl");
        let (key, certificate) = (dir.join("token.key"), dir.join("token.crt"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=brood-test"]);
        run(openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate));
        let login = STANDARD.encode(format!("{user}:{password}"));
        let signer = Signer { key, certificate: certificate.clone(), login };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let issued = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&issued);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (signer, counter) = (signer.clone(), Arc::clone(&counter));
                std::thread::spawn(move || answer(&client, &signer, &counter));
            }
        });
        Self { address, certificate, issued }
    }

    /// The part of a registry's configuration that sends its clients here.
    pub fn registry_configuration(&self) -> String {
        format!(
            "auth:\n  token:\n    realm: http://{}/token\n    service: {SERVICE}\n    issuer: {ISSUER}\n    rootcertbundle: {}\n",
            self.address,
            self.certificate.display()
        )
    }
}

fn answer(client: &TcpStream, signer: &Signer, issued: &AtomicUsize) {
    let mut lines = BufReader::new(client).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let mut login = None;
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("authorization")
        {
            login = value.strip_prefix("Basic ").map(str::to_owned);
        }
    }
    let (status, body) = if login.as_deref() == Some(&signer.login) {
        issued.fetch_add(1, Ordering::SeqCst);
        ("200 OK", serde_json::json!({ "token": signer.token(&request), "expires_in": 300 }).to_string())
    } else {
        ("401 Unauthorized", "wrong name or password".to_owned())
    };
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    let mut writer = client;
    writer.write_all(text.as_bytes()).unwrap();
}

impl Signer {
    /// A signed token that allows what the request asks for.
    fn token(&self, request: &str) -> String {
        let scope = request.split(['?', '&', ' ']).find_map(|part| part.strip_prefix("scope=")).unwrap_or_default();
        let scope = scope.replace("%3A", ":").replace("%2F", "/").replace("%2C", ",");
        let parts: Vec<_> = scope.split(':').collect();
        let access = match parts[..] {
            [kind, name, actions] => {
                vec![
                    serde_json::json!({ "type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>() }),
                ]
            }
            _ => Vec::new(),
        };
        let pem = fs::read_to_string(&self.certificate).unwrap();
        let chain: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let header = serde_json::json!({ "typ": "JWT", "alg": "RS256", "x5c": [chain] });
        let claims = serde_json::json!({
            "iss": ISSUER, "aud": SERVICE, "sub": "test", "jti": "1",
            "iat": now - 60, "nbf": now - 60, "exp": now + 300, "access": access,
        });
        let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let mut openssl = Command::new("openssl");
        openssl.args(["dgst", "-sha256", "-sign"]).arg(&self.key).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = openssl.spawn().unwrap();
        child.stdin.take().unwrap().write_all(signed.as_bytes()).unwrap();
        let signature = child.wait_with_output().unwrap().stdout;
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}
