// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Puts all changes of a file into its text, each behind a condition that is checked at run time.
//!
//! Markers in comments delimit the text of each change, so that an error of the compiler can be
//! blamed on the change that it lies in.

use std::collections::BTreeMap;

use anyhow::{bail, Result};
use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::Visit;

use crate::draw::{Genre, Mutant, Position};

/// The number by which a running program knows a change.
pub type Number = usize;

/// A piece of the text that is replaced.
struct Node {
    start: usize,
    end: usize,
    form: Form,
    /// Numbers and replacements of the changes of this piece.
    changes: Vec<(Number, String)>,
}

enum Form {
    /// `left operator right`: the bytes of the operator.
    Binary(usize, usize),
    /// `operator operand`: the end of the operator.
    Unary(usize),
    /// The statements of a function.
    Body,
}

/// Offsets of lines, to translate positions into offsets.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        Self { text, starts }
    }

    /// The offset of a column of a line; lines count from 1, columns from 0.
    fn offset(&self, at: LineColumn) -> usize {
        let start = self.starts[at.line - 1];
        let column = self.text[start..]
            .char_indices()
            .nth(at.column)
            .map_or(self.text.len() - start, |(offset, _)| offset);
        start + column
    }
}

struct Finder<'a> {
    lines: &'a Lines<'a>,
    /// The changes that have not been found yet, by the place of their operator.
    wanted: BTreeMap<(usize, usize), Vec<(Number, String)>>,
    nodes: Vec<Node>,
}

impl Finder<'_> {
    fn find(&mut self, operator: Span, whole: Span, form: fn(usize, usize) -> Form) {
        let start = operator.start();
        if let Some(changes) = self.wanted.remove(&(start.line, start.column + 1)) {
            self.nodes.push(Node {
                start: self.lines.offset(whole.start()),
                end: self.lines.offset(whole.end()),
                form: form(self.lines.offset(start), self.lines.offset(operator.end())),
                changes,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        self.find(expression.op.span(), expression.span(), Form::Binary);
        syn::visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast syn::ExprUnary) {
        self.find(expression.op.span(), expression.span(), |_, end| {
            Form::Unary(end)
        });
        syn::visit::visit_expr_unary(self, expression);
    }
}

/// Returns the text of a file with all the changes in it.
pub fn plant(text: &str, mutants: &[(Number, &Mutant)]) -> Result<String> {
    let lines = Lines::new(text);
    let mut nodes = Vec::<Node>::new();
    let mut wanted = BTreeMap::<_, Vec<_>>::new();
    for &(number, mutant) in mutants {
        let change = (number, mutant.replacement.clone());
        let Position { line, column } = mutant.span.start;
        if mutant.genre != Genre::FnValue {
            wanted.entry((line, column)).or_default().push(change);
            continue;
        }
        let [start, end] = [mutant.span.start, mutant.span.end].map(|at| {
            lines.offset(LineColumn {
                line: at.line,
                column: at.column - 1,
            })
        });
        match nodes.iter_mut().find(|node| node.start == start) {
            Some(node) => node.changes.push(change),
            None => nodes.push(Node {
                start,
                end,
                form: Form::Body,
                changes: vec![change],
            }),
        }
    }
    let mut finder = Finder {
        lines: &lines,
        wanted,
        nodes,
    };
    finder.visit_file(&syn::parse_file(text)?);
    if let Some((place, _)) = finder.wanted.first_key_value() {
        bail!("no operator at line {}, column {}", place.0, place.1);
    }
    let mut nodes = finder.nodes;
    // A piece comes before the pieces inside it.
    nodes.sort_by_key(|node| (node.start, std::cmp::Reverse(node.end)));
    Ok(written(text, 0, text.len(), &nodes))
}

/// The text between two offsets, with the pieces in it replaced.
fn written(text: &str, start: usize, end: usize, nodes: &[Node]) -> String {
    let mut out = String::new();
    let mut at = start;
    let mut rest = nodes;
    while let Some((node, others)) = rest.split_first() {
        rest = others;
        if node.start < at || node.end > end {
            continue;
        }
        let inner_count = rest.iter().take_while(|n| n.start < node.end).count();
        let (inner, outer) = rest.split_at(inner_count);
        out.push_str(&text[at..node.start]);
        out.push_str(&rewritten(text, node, inner));
        at = node.end;
        rest = outer;
    }
    out.push_str(&text[at..end]);
    out
}

fn rewritten(text: &str, node: &Node, inner: &[Node]) -> String {
    let part = |start, end| written(text, start, end, inner);
    let same = part(node.start, node.end);
    let mut out = String::new();
    let is_body = matches!(node.form, Form::Body);
    if !is_body {
        out.push('(');
    }
    for (number, replacement) in &node.changes {
        let changed = match node.form {
            Form::Body => format!("return {replacement};"),
            Form::Unary(operator_end) => part(operator_end, node.end),
            Form::Binary(operator, operator_end) => format!(
                "{} {replacement} {}",
                part(node.start, operator),
                part(operator_end, node.end)
            ),
        };
        let otherwise = if is_body { " " } else { " else " };
        out.push_str(&format!(
            "{}if ::mutant::is_on({number}) {{ {changed} }}{}{otherwise}",
            begin(*number),
            end(*number)
        ));
    }
    if is_body {
        out.push_str(&same);
    } else {
        out.push_str(&format!("{{ {same} }})"));
    }
    out
}

fn begin(number: Number) -> String {
    format!("/*+{number}+*/")
}

fn end(number: Number) -> String {
    format!("/*-{number}-*/")
}

/// The changes whose text in a changed file includes one of the lines, which count from 1; the
/// changes on the smallest numbers of lines if there are several.
pub fn blamed(planted: &str, numbers: &[Number], line: usize) -> Vec<Number> {
    let lines = Lines::new(planted);
    let line_of = |offset| lines.starts.partition_point(|&start| start <= offset);
    let mut blamed = Vec::new();
    for &number in numbers {
        // A change inside another one's operands stands in the text more than once.
        for (first, _) in planted.match_indices(&begin(number)) {
            let Some(length) = planted[first..].find(&end(number)) else {
                continue;
            };
            let range = line_of(first)..=line_of(first + length);
            if range.contains(&line) {
                blamed.push((range.end() - range.start(), number));
            }
        }
    }
    let least = blamed.iter().map(|&(size, _)| size).min();
    let mut smallest: Vec<_> = blamed
        .into_iter()
        .filter(|&(size, _)| Some(size) == least)
        .map(|(_, number)| number)
        .collect();
    smallest.sort_unstable();
    smallest.dedup();
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change as cargo-mutants lists it.
    fn mutant(
        genre: &str,
        replacement: &str,
        start: (usize, usize),
        end: (usize, usize),
    ) -> Mutant {
        let position = |(line, column)| serde_json::json!({ "line": line, "column": column });
        let value = serde_json::json!({
            "file": "lib.rs", "package": "p", "genre": genre, "replacement": replacement,
            "span": { "start": position(start), "end": position(end) },
            "function": { "function_name": "f" },
        });
        serde_json::from_value(value).unwrap()
    }

    fn without_markers(planted: &str) -> String {
        let mut out = planted.to_owned();
        for number in 0..9 {
            out = out.replace(&begin(number), "").replace(&end(number), "");
        }
        out
    }

    #[test]
    fn an_operator_keeps_its_operands() {
        let text = "fn f() -> u8 {\n    1 + 2 * 3\n}\n";
        let product = mutant("BinaryOperator", "/", (2, 11), (2, 12));
        let planted = plant(text, &[(5, &product)]).unwrap();
        assert_eq!(
            without_markers(&planted),
            "fn f() -> u8 {\n    1 + (if ::mutant::is_on(5) { 2  /  3 } else { 2 * 3 })\n}\n"
        );
    }

    #[test]
    fn changes_inside_an_operand_stand_in_both_branches() {
        let text = "fn f(a: bool, b: bool) -> bool {\n    !a && b\n}\n";
        let and = mutant("BinaryOperator", "||", (2, 8), (2, 10));
        let not = mutant("UnaryOperator", "", (2, 5), (2, 6));
        let planted = plant(text, &[(1, &and), (2, &not)]).unwrap();
        let inner = "(if ::mutant::is_on(2) { a } else { !a })";
        assert_eq!(
            without_markers(&planted),
            format!(
                "fn f(a: bool, b: bool) -> bool {{\n    (if ::mutant::is_on(1) \
                 {{ {inner}  ||  b }} else {{ {inner} && b }})\n}}\n"
            )
        );
    }

    #[test]
    fn two_changes_of_one_function_are_two_returns() {
        let text = "fn f() -> bool {\n    g()\n}\n";
        let [no, yes] = ["false", "true"].map(|v| mutant("FnValue", v, (2, 5), (2, 8)));
        let planted = plant(text, &[(1, &no), (2, &yes)]).unwrap();
        assert_eq!(
            without_markers(&planted),
            "fn f() -> bool {\n    if ::mutant::is_on(1) { return false; } \
             if ::mutant::is_on(2) { return true; } g()\n}\n"
        );
    }

    #[test]
    fn a_place_without_an_operator_is_an_error() {
        let wrong = mutant("BinaryOperator", "-", (1, 1), (1, 2));
        assert!(plant("fn f() {}\n", &[(1, &wrong)]).is_err());
    }

    #[test]
    fn an_error_is_blamed_on_the_smallest_change_at_its_line() {
        let text = "fn f() -> bool {\n    a(\n        1 + 2,\n    ) && b\n}\n";
        let and = mutant("BinaryOperator", "||", (4, 7), (4, 9));
        let plus = mutant("BinaryOperator", "-", (3, 11), (3, 12));
        let planted = plant(text, &[(1, &and), (2, &plus)]).unwrap();
        assert_eq!(blamed(&planted, &[1, 2], 3), [2]);
        assert_eq!(blamed(&planted, &[1, 2], 2), [1]);
        assert!(blamed(&planted, &[1, 2], 1).is_empty());
    }
}
