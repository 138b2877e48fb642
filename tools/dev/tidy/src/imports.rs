// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The files of a crate, and the uses between them.
//!
//! A file uses another file if a path in its code refers to an item of that file: `crate::a::B`,
//! `super::a::b()`, or `a::B` where `a` is imported or a child. A `use` with a visibility (`pub
//! use`, `pub(crate) use`) does not count: it is a re-export. A file that imports a re-exported
//! name uses the file that defines the name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sources::Language;
use crate::tokens::{split, Class, Token};

/// Segments of a path, without `crate`.
type Names = Vec<String>;

/// A module that has a file of its own.
#[derive(Default)]
struct Module {
    file: PathBuf,
    children: BTreeSet<String>,
    /// Names that `use` brings into scope, each with the path of its item.
    scope: HashMap<String, Names>,
    /// Re-exported names, each with the path of its item.
    forwards: HashMap<String, Names>,
    /// Modules whose names are all re-exported.
    globs: Vec<Names>,
    /// The paths in the code.
    paths: Vec<Names>,
}

/// For each file, the files that it uses.
pub type Uses = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// Returns the uses between the files of the crate whose root is `root`, below `top`.
pub fn uses(top: &Path, root: &Path) -> Result<Uses> {
    let mut crate_ = BTreeMap::new();
    let folder = root.parent().unwrap_or(Path::new("")).to_owned();
    load(top, root.to_owned(), folder, Vec::new(), &mut crate_)?;
    let mut uses = Uses::new();
    for module in crate_.values() {
        let used = uses.entry(module.file.clone()).or_default();
        for path in &module.paths {
            let file = resolve(&crate_, path, 0);
            used.extend(file.filter(|file| *file != module.file));
        }
    }
    Ok(uses)
}

/// Reads a module and its descendants. Its children's files are in `folder`.
fn load(
    top: &Path,
    file: PathBuf,
    folder: PathBuf,
    name: Names,
    crate_: &mut BTreeMap<Names, Module>,
) -> Result<()> {
    let text =
        std::fs::read_to_string(top.join(&file)).with_context(|| file.display().to_string())?;
    let tokens = split(Language::Rust, &text);
    let code: Vec<&Token<'_>> = tokens
        .iter()
        .filter(|token| token.class == Class::Code)
        .collect();
    let mut module = Module {
        file: file.clone(),
        ..Module::default()
    };
    let mut children = Vec::new();
    let mut at = 0;
    let mut attribute = None;
    while at < code.len() {
        let rest = &code[at..];
        if is_left_out(rest) {
            at += after_block(rest).unwrap_or(rest.len());
        } else if let Some(path) = included(rest) {
            let path = normal(&file.parent().unwrap_or(Path::new("")).join(path));
            for (child, place) in declared(top, &path)? {
                module.children.insert(child.clone());
                children.push((child, place));
            }
            at += 3;
        } else if starts_with(rest, &["#", "[", "path", "="]) {
            attribute = rest
                .get(4)
                .map(|token| token.text.trim_matches('"').to_owned());
            at += 6;
        } else if starts_with(rest, &["mod", "tests", ";"]) {
            // Test modules are skipped: they may belong to another crate root.
            at += 3;
        } else if rest[0].text == "mod" && rest.get(2).is_some_and(|token| token.text == ";") {
            let child = rest[1].text.to_owned();
            let place = match attribute.take() {
                Some(path) => normal(&file.parent().unwrap_or(Path::new("")).join(path)),
                None => file_of(top, &folder, &child),
            };
            module.children.insert(child.clone());
            children.push((child, place));
            at += 3;
        } else if rest[0].text == "use" && (at == 0 || code[at - 1].text != ".") {
            let is_forward = at > 0 && (code[at - 1].text == "pub" || is_restricted(&code[..at]));
            let length = after_block_of_use(rest);
            let mut used = Vec::new();
            tree(&rest[1..length], &mut 0, Vec::new(), &mut used);
            for (path, alias) in used {
                let Some(path) = absolute(&name, &module.children, &path) else {
                    continue;
                };
                match (is_forward, alias.as_str()) {
                    (true, "*") => module.globs.push(path),
                    (true, _) => drop(module.forwards.insert(alias, path)),
                    (false, "*") => module.paths.push(path),
                    (false, _) => {
                        module.paths.push(path.clone());
                        module.scope.insert(alias, path);
                    }
                }
            }
            at += length;
        } else if rest.get(1).is_some_and(|token| token.text == ":")
            && (at < 2 || code[at - 1].text != ":" || code[at - 2].text != ":")
            && starts_with(&rest[1..], &[":", ":"])
        {
            let path = path(rest);
            at += path.len() * 3 - 2;
            // Macros are visible in the whole crate, so a call of a macro is not a use.
            if code.get(at).is_some_and(|token| token.text == "!") {
                continue;
            }
            let known = module.scope.get(&path[0]).map(|start| {
                start
                    .iter()
                    .cloned()
                    .chain(path[1..].iter().cloned())
                    .collect()
            });
            module
                .paths
                .extend(known.or_else(|| absolute(&name, &module.children, &path)));
        } else {
            at += 1;
        }
    }
    crate_.insert(name.clone(), module);
    for (child, place) in children {
        let is_root = place.file_name().is_some_and(|name| name == "mod.rs");
        let folder = if is_root {
            place.parent().map(Path::to_owned)
        } else {
            None
        };
        let folder = folder.unwrap_or_else(|| place.with_extension(""));
        let name = name.iter().cloned().chain([child]).collect();
        load(top, place, folder, name, crate_)?;
    }
    Ok(())
}

/// Whether the tokens begin with an item that is compiled for tests only, or only in the kernel's
/// tree.
fn is_left_out(tokens: &[&Token<'_>]) -> bool {
    let condition = |words: &[&str]| {
        starts_with(tokens, &["#", "[", "cfg", "("]) && starts_with(&tokens[4..], words)
    };
    condition(&["test", ")"])
        || condition(&["all", "(", "test", ","])
        || condition(&["any", "(", "test", ","])
        || condition(&["CONFIG_RUST_RDMA_KUNIT_TEST", ")"])
        || condition(&["not", "(", "OUT_OF_TREE", ")"])
}

/// The file of a module that is declared without a `path` attribute.
fn file_of(top: &Path, folder: &Path, name: &str) -> PathBuf {
    let flat = folder.join(format!("{name}.rs"));
    if top.join(&flat).is_file() {
        flat
    } else {
        folder.join(name).join("mod.rs")
    }
}

/// The path of the `include!` with which the tokens begin, if the path is a literal.
fn included<'a>(tokens: &[&Token<'a>]) -> Option<&'a str> {
    if !starts_with(tokens, &["include", "!", "("]) {
        return None;
    }
    tokens.get(3)?.text.strip_prefix('"')?.strip_suffix('"')
}

/// The modules that an included file declares, and their files.
fn declared(top: &Path, file: &Path) -> Result<Vec<(String, PathBuf)>> {
    let text =
        std::fs::read_to_string(top.join(file)).with_context(|| file.display().to_string())?;
    let tokens = split(Language::Rust, &text);
    let code: Vec<&Token<'_>> = tokens
        .iter()
        .filter(|token| token.class == Class::Code)
        .collect();
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut modules = Vec::new();
    let mut attribute = None;
    for (at, token) in code.iter().enumerate() {
        let rest = &code[at..];
        if starts_with(rest, &["[", "path", "="]) {
            attribute = rest.get(3).map(|token| token.text.trim_matches('"'));
        } else if token.text == "mod" && rest.get(2).is_some_and(|token| token.text == ";") {
            let name = rest[1].text;
            let place = match attribute.take() {
                Some(path) => normal(&folder.join(path)),
                None => file_of(top, folder, name),
            };
            modules.push((name.to_owned(), place));
        }
    }
    Ok(modules)
}

/// Whether the tokens end with a restricted visibility such as `pub(crate)`.
fn is_restricted(tokens: &[&Token<'_>]) -> bool {
    let open = tokens.iter().rposition(|token| token.text == "(");
    tokens.last().is_some_and(|token| token.text == ")")
        && open.is_some_and(|open| open > 0 && tokens[open - 1].text == "pub")
}

fn after_block_of_use(tokens: &[&Token<'_>]) -> usize {
    let end = tokens.iter().position(|token| token.text == ";");
    end.map_or(tokens.len(), |end| end + 1)
}

/// The names of the path with which the tokens begin.
fn path(tokens: &[&Token<'_>]) -> Names {
    let mut names = vec![tokens[0].text.to_owned()];
    let mut at = 1;
    while starts_with(&tokens[at..], &[":", ":"])
        && tokens.get(at + 2).is_some_and(|token| is_name(token.text))
    {
        names.push(tokens[at + 2].text.to_owned());
        at += 3;
    }
    names
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Collects the paths of a `use` tree, each with its name in the file.
fn tree(tokens: &[&Token<'_>], at: &mut usize, before: Names, found: &mut Vec<(Names, String)>) {
    let mut path = before.clone();
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token.text {
            ":" => {}
            "{" => {
                tree(tokens, at, path.clone(), found);
                path.clear();
            }
            "as" => {
                let alias = tokens.get(*at).map_or("", |token| token.text);
                found.push((std::mem::take(&mut path), alias.to_owned()));
                *at += 1;
            }
            "," | "}" | ";" => {
                if path.len() > before.len() {
                    let alias = path.last().cloned().unwrap_or_default();
                    found.push((path.clone(), alias));
                }
                path = before.clone();
                if token.text != "," {
                    return;
                }
            }
            "*" => found.push((std::mem::take(&mut path), "*".into())),
            "self" if !path.is_empty() => {
                let alias = path.last().cloned().unwrap_or_default();
                let alias = match tokens.get(*at) {
                    Some(next) if next.text == "as" => {
                        *at += 2;
                        tokens
                            .get(*at - 1)
                            .map_or(alias, |token| token.text.to_owned())
                    }
                    _ => alias,
                };
                found.push((std::mem::take(&mut path), alias));
            }
            name => path.push(name.to_owned()),
        }
    }
}

/// The path from the root of the crate, or `None` if it leads to another crate.
fn absolute(module: &[String], children: &BTreeSet<String>, path: &[String]) -> Option<Names> {
    let mut base = module.to_vec();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        name if children.contains(name) => {}
        _ => return None,
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The file that defines the item of a path.
fn resolve(crate_: &BTreeMap<Names, Module>, path: &[String], depth: usize) -> Option<PathBuf> {
    let length = (0..=path.len())
        .rev()
        .find(|length| crate_.contains_key(&path[..*length]))?;
    let module = &crate_[&path[..length]];
    // Limits re-exports in a circle.
    if depth > 8 {
        return Some(module.file.clone());
    }
    let Some(item) = path.get(length) else {
        return Some(module.file.clone());
    };
    let further = |start: &Names| {
        let whole: Names = start.iter().chain(&path[length + 1..]).cloned().collect();
        resolve(crate_, &whole, depth + 1)
    };
    // Children see the private imports of their parents too.
    if let Some(start) = module.forwards.get(item).or_else(|| module.scope.get(item)) {
        return further(start);
    }
    for glob in &module.globs {
        let start: Names = glob.iter().chain([item]).cloned().collect();
        let has = crate_.get(glob).is_some_and(|module| {
            module.children.contains(item) || module.forwards.contains_key(item)
        });
        if has {
            return further(&start);
        }
    }
    Some(module.file.clone())
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|part| part.to_str()) {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

/// Whether the tokens begin with these words.
fn starts_with(tokens: &[&Token<'_>], words: &[&str]) -> bool {
    tokens.len() >= words.len()
        && tokens
            .iter()
            .zip(words)
            .all(|(token, word)| token.text == *word)
}

/// The number of tokens of the item with which the tokens begin, up to its `;` or the end of its
/// block.
fn after_block(tokens: &[&Token<'_>]) -> Option<usize> {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return Some(at + 1),
            _ => continue,
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uses of a crate with these files, as sorted strings "file > file".
    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let top = std::env::temp_dir().join(format!("tidy-{:?}", std::thread::current().id()));
        for (name, text) in files {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().expect("the path has a folder"))
                .expect("created");
            std::fs::write(path, text).expect("written");
        }
        let uses = uses(&top, Path::new(files[0].0)).expect("the crate is read");
        std::fs::remove_dir_all(top).expect("removed");
        let pair =
            |(from, to): (&PathBuf, &PathBuf)| format!("{} > {}", from.display(), to.display());
        uses.iter()
            .flat_map(|(from, to)| to.iter().map(move |to| pair((from, to))))
            .collect()
    }

    #[test]
    fn imports_and_paths_lead_to_files() {
        let found = of(&[
            ("src/lib.rs", "mod a;\nmod b;\npub mod c;\nuse other::x;\n"),
            (
                "src/a.rs",
                "use crate::{b::{self, B}, c as d};\nfn f() { d::e::g(); super::c::h() }",
            ),
            ("src/b.rs", "fn f() -> crate::a::A { std::mem::take() }"),
            ("src/c/mod.rs", "mod e;\nmod f;\nfn f() { e::g() }"),
            (
                "src/c/e.rs",
                "use super::*;\n#[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(x)]\nmod tests;",
            ),
            (
                "src/c/f.rs",
                "#[cfg(all(test, not(x)))]\nmod tests { use crate::b::B; }",
            ),
        ]);
        let expected = [
            "src/a.rs > src/b.rs",
            "src/a.rs > src/c/e.rs",
            "src/a.rs > src/c/mod.rs",
            "src/b.rs > src/a.rs",
            "src/c/e.rs > src/c/mod.rs",
            "src/c/mod.rs > src/c/e.rs",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn forwarding_is_no_use() {
        let found = of(&[
            ("src/lib.rs", "#[path = \"../x/mod.rs\"]\nmod a;\nmod b;\n"),
            (
                "x/mod.rs",
                "mod c;\npub(crate) use c::{C, D as E};\npub struct F;",
            ),
            ("x/c.rs", "use super::F;\n"),
            ("src/b.rs", "use crate::a::E;\n"),
        ]);
        assert_eq!(found, ["src/b.rs > x/c.rs", "x/c.rs > x/mod.rs"]);
    }
}
