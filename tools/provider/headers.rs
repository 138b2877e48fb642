// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks the headers of an rdma-core release against the layout that the provider has for it.
//! Used by `build.rs` and by the tests.

use crate::layouts;
use crate::layouts::Layout;

/// The part of `text` between `start` and `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(part, _)| part)
}

/// Members of `struct verbs_context_ops` in bindings.
fn operations(bindings: &str) -> Vec<&str> {
    let body = between(bindings, "pub struct verbs_context_ops {", "\n}").unwrap_or("");
    body.lines()
        .filter_map(|line| line.strip_prefix("    pub ")?.split_once(':'))
        .map(|(name, _)| name)
        .collect()
}

/// Names of the arguments of a function in bindings.
fn arguments<'a>(bindings: &'a str, function: &str) -> Option<Vec<&'a str>> {
    let list = between(bindings, &format!("pub fn {function}("), ")")?;
    let name = |argument: &'a str| argument.split_once(':').map(|(name, _)| name.trim());
    Some(list.split(',').filter_map(name).collect())
}

/// Names and indices of the arguments that `function` has gained since the first known release, up
/// to `release`.
fn added(release: u32, function: &str) -> Vec<&'static layouts::Argument> {
    let has =
        |argument: &&layouts::Argument| argument.function == function && argument.since <= release;
    layouts::ARGUMENTS.iter().filter(has).collect()
}

/// Checks the bindings of the headers of `release`, whose private ABI has the number `abi`. Returns
/// declarations that the provider needs in addition to the bindings.
///
/// # Errors
///
/// A sentence that names the difference.
pub fn check(bindings: &str, release: u32, abi: u32) -> Result<String, String> {
    let layout = layouts::of_release(release).ok_or_else(|| {
        let first = layouts::LAYOUTS[0].since;
        format!("rdma-core {release} is older than {first}, the first that the provider is for")
    })?;
    match misfit(bindings, release, abi, layout) {
        None => Ok(declarations(bindings, layout)),
        Some(misfit) => Err(format!(
            "the private interface of rdma-core {release} is not that of rdma-core {} and later \
             (tools/provider/src/layouts.rs): {misfit}",
            layout.since
        )),
    }
}

/// The first difference between the headers and the layout, if there is one.
fn misfit(bindings: &str, release: u32, abi: u32, layout: &Layout) -> Option<String> {
    if abi != layout.abi {
        return Some(format!("its number is {abi}, not {}", layout.abi));
    }
    let expected: Vec<_> = layouts::operations()
        .filter(|(_, since)| *since <= layout.since)
        .map(|(name, _)| name)
        .collect();
    let found = operations(bindings);
    let other = |index: &usize| found.get(*index) != expected.get(*index);
    if let Some(index) = (0..found.len().max(expected.len())).find(other) {
        let name = |names: &[&str]| names.get(index).map_or("the end", |name| name).to_owned();
        return Some(format!(
            "operation {index} of struct verbs_context_ops is {}, not {}",
            name(&found),
            name(&expected)
        ));
    }
    let size = between(bindings, "size_of::<verbs_context>() - ", "usize]");
    if size != Some(&layout.context_size.to_string()) {
        let size = size.unwrap_or("?");
        let expected = layout.context_size;
        return Some(format!(
            "struct verbs_context has {size} bytes, not {expected}"
        ));
    }
    layouts::functions().find_map(|(function, first)| {
        let Some(found) = arguments(bindings, function) else {
            return Some(format!("there is no {function}"));
        };
        let added = added(release, function);
        let expected = first as usize + added.len();
        if found.len() != expected {
            return Some(format!(
                "{function} has {} arguments, not {expected}",
                found.len()
            ));
        }
        let argument = added
            .iter()
            .find(|argument| found[argument.index] != argument.name)?;
        Some(format!(
            "{function} has no argument {} at {}",
            argument.name, argument.index
        ))
    })
}

/// Additional declarations: the layout of the headers, and constants that old headers lack.
fn declarations(bindings: &str, layout: &Layout) -> String {
    let lacks = |(name, _): &&(&str, u32)| !bindings.contains(&format!("pub const {name}:"));
    let numbers = layouts::NUMBERS.iter().filter(lacks);
    let numbers = numbers.map(|(name, number)| format!("pub const {name}: u32 = {number};\n"));
    let headers = format!("pub const HEADERS: u32 = {};\n", layout.since);
    numbers.chain([headers]).collect()
}
