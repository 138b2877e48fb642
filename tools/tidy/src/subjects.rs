// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The form of commit subjects: `area: verb what`, at most 72 characters.

const LENGTH: usize = 72;
/// Maximum number of areas of a subject. A commit that changes more of them names their folder.
const AREAS: usize = 2;

/// Returns a complaint for each commit whose subject has another form. `log` has a line for each
/// commit: its hash and its subject.
pub fn check(log: &str) -> Vec<String> {
    let complaint = |line: &str| {
        let (commit, subject) = line.split_once(' ')?;
        fault(subject).map(|fault| format!("commit {commit}: {fault}: {subject}"))
    };
    log.lines().filter_map(complaint).collect()
}

/// The fault of a subject, if it has one.
fn fault(subject: &str) -> Option<&'static str> {
    if subject.chars().count() > LENGTH {
        return Some("subject of more than 72 characters");
    }
    let Some((areas, rest)) = subject.split_once(": ") else {
        return Some("subject without \"area: verb\"");
    };
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
    let are_areas = areas
        .split(", ")
        .all(|area| !area.is_empty() && area.chars().all(is_name));
    let are_few = areas.split(", ").count() <= AREAS;
    if !are_areas || !are_few || !rest.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Some("subject without \"area: verb\"");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_in_form() {
        for subject in [
            "verbs: charge local work",
            "driver, rust/rdma: end it",
            "c-b_1: a",
        ] {
            assert_eq!(fault(subject), None, "{subject}");
        }
        for subject in [
            "Charge local work",
            "verbs:charge",
            "verbs: Charge",
            "Verbs: charge",
            ": a",
            "abi, decode, ring: a",
        ] {
            assert!(fault(subject).is_some(), "{subject}");
        }
        assert_eq!(fault(&format!("a: {}", "b".repeat(69))), None);
        assert!(fault(&format!("a: {}", "b".repeat(70))).is_some());
    }
}
