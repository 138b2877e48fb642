// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Cycles of imports between files and between folders.
//!
//! `allowed-cycles`, beside this crate's manifest, lists the allowed uses that close a cycle, each
//! with its reason. Without these uses, no cycle may be left. An entry that closes no cycle any
//! more is an error too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::imports::{uses, Uses};
use crate::sources::Tree;

/// The crates whose files are checked: the root file, and the folder of the checked files.
const CRATES: &[(&str, &str)] = &[
    ("drivers/infiniband/hw/virtio_rdma/main.rs", "drivers"),
    (
        "tools/rdmad/scheduler/src/lib.rs",
        "tools/rdmad/scheduler/src",
    ),
    ("tools/rdmad/verbs/src/lib.rs", "tools/rdmad/verbs/src"),
];

/// The crates whose folders are checked: the root file, and the number of leading path components
/// that identify a folder.
const FOLDERS: &[(&str, usize)] = &[("drivers/infiniband/hw/virtio_rdma/main.rs", 3)];

/// The list of allowed uses, below the top of the checkout.
const ALLOWED: &str = "tools/dev/tidy/allowed-cycles";

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns a complaint for each cycle, and for each entry of the list that is not an existing use
/// or closes no cycle.
pub fn check(tree: &Tree) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(tree.top().join(ALLOWED)).context(ALLOWED)?;
    let mut graph = Graph::new();
    for (root, folder) in CRATES {
        merge(
            &mut graph,
            files(&uses(tree.top(), Path::new(root))?, folder),
        );
    }
    for (root, depth) in FOLDERS {
        merge(
            &mut graph,
            folders(&uses(tree.top(), Path::new(root))?, *depth),
        );
    }
    Ok(complaints(graph, &allowed(&text)?))
}

fn merge(graph: &mut Graph, other: Graph) {
    for (from, to) in other {
        graph.entry(from).or_default().extend(to);
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// The uses between files below a folder.
fn files(uses: &Uses, folder: &str) -> Graph {
    let inside = |path: &&PathBuf| path.starts_with(folder);
    let targets = |to: &BTreeSet<PathBuf>| to.iter().filter(inside).map(|to| name(to)).collect();
    uses.iter()
        .filter(|(from, _)| inside(from))
        .map(|(from, to)| (name(from), targets(to)))
        .collect()
}

/// The uses between folders. The first `depth` components of a path identify a folder. All of
/// `drivers` is one folder.
fn folders(uses: &Uses, depth: usize) -> Graph {
    let folder = |path: &Path| {
        let depth = if path.starts_with("drivers") {
            1
        } else {
            depth
        };
        format!("{}/", name(&path.iter().take(depth).collect::<PathBuf>()))
    };
    let mut graph = Graph::new();
    for (from, to) in uses {
        let from = folder(from);
        let others = to.iter().map(|to| folder(to)).filter(|to| *to != from);
        graph
            .entry(from.clone())
            .or_default()
            .extend(others.collect::<Vec<_>>());
    }
    graph
}

/// Reads lines `FROM > TO: REASON`.
fn allowed(text: &str) -> Result<Vec<(String, String)>> {
    let is_entry = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let entry = |line: &str| {
        let (from, rest) = line
            .split_once(" > ")
            .with_context(|| format!("{ALLOWED}: {line}"))?;
        let (to, reason) = rest
            .split_once(": ")
            .with_context(|| format!("{ALLOWED}: {line}"))?;
        anyhow::ensure!(!reason.trim().is_empty(), "{ALLOWED}: no reason: {line}");
        Ok((from.to_owned(), to.to_owned()))
    };
    text.lines().filter(is_entry).map(entry).collect()
}

fn complaints(mut graph: Graph, allowed: &[(String, String)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let whole = graph.clone();
    for (from, to) in allowed {
        let is_use = graph
            .get_mut(from)
            .is_some_and(|targets| targets.remove(to));
        if !is_use {
            complaints.push(format!("{ALLOWED}: {from} does not use {to}"));
        }
    }
    for (from, to) in allowed {
        if route(&whole, to, from).is_none() {
            complaints.push(format!("{ALLOWED}: {from} > {to} closes no cycle"));
        }
    }
    // One use of each found cycle is removed, so that the next search finds another cycle.
    while let Some(cycle) = first_cycle(&graph) {
        complaints.push(format!("cycle: {}", cycle.join(" > ")));
        if let [from, to, ..] = &cycle[..] {
            graph.get_mut(from).map(|targets| targets.remove(to));
        }
    }
    complaints
}

/// A shortest cycle.
fn first_cycle(graph: &Graph) -> Option<Vec<String>> {
    let cycle = |(from, to): (&String, &String)| {
        let mut cycle = vec![from.clone()];
        cycle.extend(route(graph, to, from)?);
        Some(cycle)
    };
    let edges = graph
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    edges.filter_map(cycle).min_by_key(Vec::len)
}

/// The nodes of a shortest path between two nodes, including both.
fn route(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::from([from.to_owned()]);
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = way.last()?;
            if last == to {
                return Some(way);
            }
            for next in graph.get(last).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    longer.push(way.iter().chain([next]).cloned().collect());
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(edges: &[(&str, &str)], list: &str) -> Vec<String> {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph
                .entry((*from).into())
                .or_default()
                .insert((*to).into());
        }
        complaints(graph, &allowed(list).expect("the list is well formed"))
    }

    #[test]
    fn a_cycle_is_found_once_and_can_be_allowed() {
        let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")];
        assert_eq!(of(&edges, ""), ["cycle: a > b > c > a"]);
        assert_eq!(of(&edges, "# why\nc > a: parent of a\n"), [""; 0]);
        assert_eq!(of(&edges[..2], ""), [""; 0]);
    }

    #[test]
    fn needless_entries_are_errors() {
        let edges = [("a", "b"), ("b", "c")];
        let expected = ["allowed-cycles: a > b closes no cycle"];
        let found = of(&edges, "a > b: why\n");
        assert!(found[0].ends_with(expected[0]), "{found:?}");
        assert!(of(&edges, "a > c: why\n")[0].ends_with("a does not use c"));
        assert!(allowed("a > b:\n").is_err());
        assert!(allowed("a > b: \n").is_err());
    }

    #[test]
    fn files_and_folders() {
        let mut uses = Uses::new();
        uses.entry("rust/a/x.rs".into())
            .or_default()
            .extend(["rust/b/y.rs".into(), "rust/a/z.rs".into()]);
        uses.entry("drivers/c/d.rs".into())
            .or_default()
            .insert("rust/a/x.rs".into());
        let graph = folders(&uses, 2);
        assert_eq!(graph["rust/a/"], BTreeSet::from(["rust/b/".to_owned()]));
        assert_eq!(graph["drivers/"], BTreeSet::from(["rust/a/".to_owned()]));
        assert_eq!(
            files(&uses, "rust/a")["rust/a/x.rs"],
            BTreeSet::from(["rust/a/z.rs".to_owned()])
        );
    }
}
