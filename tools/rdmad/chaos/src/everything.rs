// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The scenario in which everything fails now and then.

use std::fmt::Write;

/// The name of the scenario; `everything:7` is that with seed 7.
pub(crate) const NAME: &str = "everything";

/// The failures: of which events, at least how many there are for each, and the effect.
const FAILURES: [(&str, u64, &str); 16] = [
    ("command REG_USER_MR", 8, "refuse ENOMEM"),
    ("command CREATE_QP", 8, "refuse EAGAIN"),
    ("command any", 40, "wait 20ms"),
    ("send any", 3000, "fail RETRY_EXC_ERR"),
    ("send any", 4000, "fail REM_OP_ERR"),
    ("send any", 5000, "raise QP_FATAL"),
    ("send any", 6000, "flap 500ms"),
    ("access any", 4000, "fail REM_ACCESS_ERR"),
    ("receive", 60, "withhold"),
    ("receive", 4000, "fail LOC_PROT_ERR"),
    ("packet", 150, "drop"),
    ("packet", 200, "corrupt"),
    ("packet", 120, "repeat"),
    ("packet", 130, "delay 2"),
    ("completion", 700, "hold 10ms"),
    ("event", 90, "repeat"),
];

/// The scenario, if this is its name.
pub(crate) fn named(name: &str) -> Option<String> {
    let seed = match name.strip_prefix(NAME)? {
        "" => 0,
        seed => seed.strip_prefix(':')?.parse().ok()?,
    };
    Some(text(seed))
}

/// The same text for the same seed.
fn text(seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = String::new();
    for (at, (event, least, effect)) in FAILURES.iter().enumerate() {
        let every = random.u64(*least..2 * least);
        let from = random.u64(1..=every);
        let word = effect.split(' ').next().unwrap_or_default();
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{word}-{}: {event} from {from} every {every} then {effect}",
            at + 1
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;

    #[test]
    fn a_seed_names_a_scenario() {
        for name in ["everything", "everything:7"] {
            let scenario: Scenario = named(name).unwrap().parse().unwrap();
            assert_eq!(scenario.0.len(), FAILURES.len());
            assert_eq!(named(name), named(name));
        }
        assert_eq!(named("everything"), named("everything:0"));
        assert_ne!(named("everything:1"), named("everything:2"));
        assert_eq!(named("everything:x"), None);
        assert_eq!(named("everythings"), None);
    }
}
