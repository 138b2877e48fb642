// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The form of commit messages: the subject is `area: verb what` of at most 72 characters, and
//! the commit is signed off.

const LENGTH: usize = 72;
/// Maximum number of areas of a subject. A commit that changes more of them names their folder.
const AREAS: usize = 2;

/// Returns a complaint for each commit whose message has another form. In `log`, a null character
/// ends each commit: its hash, a space, and its message.
pub fn check(log: &str) -> Vec<String> {
    let complaint = |commit: &str| {
        let (hash, message) = commit.split_once(' ')?;
        let subject = message.lines().next().unwrap_or_default();
        fault(message).map(|fault| format!("commit {hash}: {fault}: {subject}"))
    };
    log.split('\0').filter_map(complaint).collect()
}

/// The fault of a commit message, if it has one.
fn fault(message: &str) -> Option<&'static str> {
    let mut lines = message.lines();
    let subject = lines.next().unwrap_or_default();
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
    if !lines.any(|line| line.starts_with("Signed-off-by: ")) {
        return Some("not signed off");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault_of_subject(subject: &str) -> Option<&'static str> {
        fault(&format!("{subject}\n\nSigned-off-by: A <a@example.org>\n"))
    }

    #[test]
    fn a_commit_is_signed_off() {
        assert_eq!(fault("abi: add it\n\nWhy.\n"), Some("not signed off"));
        let log = "1 abi: add it\n\nSigned-off-by: A\n\x002 abi: drop it\n\nWhy.\n\0";
        assert_eq!(check(log), ["commit 2: not signed off: abi: drop it"]);
    }

    #[test]
    fn subjects_in_form() {
        for subject in [
            "verbs: charge local work",
            "driver, rust/rdma: end it",
            "c-b_1: a",
        ] {
            assert_eq!(fault_of_subject(subject), None, "{subject}");
        }
        for subject in [
            "Charge local work",
            "verbs:charge",
            "verbs: Charge",
            "Verbs: charge",
            ": a",
            "abi, decode, ring: a",
        ] {
            assert!(fault_of_subject(subject).is_some(), "{subject}");
        }
        assert_eq!(fault_of_subject(&format!("a: {}", "b".repeat(69))), None);
        assert!(fault_of_subject(&format!("a: {}", "b".repeat(70))).is_some());
    }
}
