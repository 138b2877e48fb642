// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The file of `--state`.
//!
//! A content of any bytes is read without a panic, or refused with the number of a line. A document
//! that was read is written and read again without a difference, and merging it with the command
//! line a second time changes nothing. A document that records changes by `ctl` restores the ports
//! of a model.

use std::collections::BTreeMap;

use virtio_rdmad::testing::{merge, Document, PortArgs, SocketArgs};

use crate::input::Input;

/// Names of ports. The command line contains the first ones.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Options of ports.
const OPTIONS: [&str; 6] = [
    "",
    ",rate=1M",
    ",rate=2M,messages=9",
    ",group=x,ip=fd09::1",
    ",net=/run/x",
    ",memory=1G,speed=400",
];
/// Users of the sockets of added ports.
const SOCKETS: [&str; 4] = [
    "{}",
    "{\"mode\":\"660\"}",
    "{\"group\":36}",
    "{\"mode\":\"640\",\"group\":0}",
];
/// Values of `RUST_LOG`.
const ENVIRONMENTS: [Option<&str>; 3] = [None, Some("warn"), Some("")];

/// Length of a content in bytes that no damage makes longer by repeating a part of it.
const MOST: usize = 8192;

/// Ports by their names.
type Ports = BTreeMap<String, (PortArgs, SocketArgs)>;

/// Runs the target.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let mut input = Input::new(rest);
    let environment = ENVIRONMENTS[usize::from(kind / 2) % ENVIRONMENTS.len()];
    if kind % 2 == 0 {
        let configured: Vec<_> = NAMES[..2].iter().map(|name| port(name, 0)).collect();
        read(rest, &configured, environment);
        return;
    }
    let configured: Vec<_> = NAMES[..input.below(NAMES.len())]
        .iter()
        .map(|name| port(name, input.below(OPTIONS.len())))
        .collect();
    let document = record(&mut input, &configured, environment);
    // A damaged content.
    let mut content = document.to_string().into_bytes();
    while input.has_more() {
        let at = usize::from(input.any::<u16>()) % content.len();
        match input.below(4) {
            0 => content[at] = input.any(),
            1 => content.truncate(at.max(1)),
            2 => content.insert(at, input.any()),
            _ if content.len() < MOST => content.extend_from_within(at..),
            _ => {}
        }
    }
    read(&content, &configured, environment);
}

/// Records changes in a document, and checks that it restores the ports that a model has.
fn record(input: &mut Input<'_>, configured: &[PortArgs], environment: Option<&str>) -> Document {
    let mut document = Document::default();
    let of_command_line = |port: &PortArgs| (port.clone(), SocketArgs::default());
    let named = |port: &PortArgs| (port.name.clone(), of_command_line(port));
    let mut model: Ports = configured.iter().map(named).collect();
    for _ in 0..input.below(12) {
        let name = input.of(&NAMES);
        let port = port(name, input.below(OPTIONS.len()));
        match model.get_mut(name) {
            None => {
                let sockets: SocketArgs = serde_json::from_str(input.of(&SOCKETS)).unwrap();
                document.add(port.clone(), sockets.clone());
                model.insert(name.into(), (port, sockets));
            }
            Some(_) if input.below(3) == 0 => {
                document.remove(name, configured);
                model.remove(name);
            }
            Some((present, _)) => {
                present.rates = port.rates;
                document.change(present.clone(), configured);
            }
        }
    }
    let before = document.clone();
    let restored = merge(&mut document, configured, environment);
    assert_eq!(document, before);
    assert_eq!(restored.superseded, [""; 0]);
    let ports = restored.configured.iter().map(named);
    let added = restored.added.into_iter();
    let ports = ports.chain(added.map(|(port, sockets)| (port.name.clone(), (port, sockets))));
    assert_eq!(ports.collect::<Ports>(), model);
    document
}

/// Reads a content, and checks what follows.
fn read(content: &[u8], configured: &[PortArgs], environment: Option<&str>) {
    let mut document = match Document::parse(content) {
        Ok(document) => document,
        Err(error) => {
            assert!(error.to_string().starts_with("line "), "{error}");
            return;
        }
    };
    let again = Document::parse(document.to_string().as_bytes());
    assert_eq!(again.unwrap(), document);
    let restored = merge(&mut document, configured, environment);
    let merged = document.clone();
    let again = merge(&mut document, configured, environment);
    assert_eq!(document, merged);
    assert_eq!(again.superseded, [""; 0]);
    assert_eq!(
        (&again.configured, again.added, again.level),
        (&restored.configured, restored.added, restored.level)
    );
    // Limits apart, ports of the command line stay as they are or are removed.
    for port in restored.configured {
        let with_limits = |known: &PortArgs| PortArgs {
            rates: port.rates,
            ..known.clone()
        };
        assert!(configured
            .iter()
            .map(with_limits)
            .any(|known| known == port));
    }
}

/// A port with a number of [`OPTIONS`].
fn port(name: &str, options: usize) -> PortArgs {
    let number = name.as_bytes()[0];
    let options = OPTIONS[options];
    let text = format!("{name},vfio=/run/{name},mac=52:54:00:09:00:{number:02x}{options}");
    text.parse().unwrap()
}
