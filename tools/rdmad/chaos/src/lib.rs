// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Scenarios: failures on order.
//!
//! A [`Scenario`] is a list of [rules](Rule). A rule says when something fails and how. It counts
//! what it is about, and chooses by these counts alone, so that a program that does the same again
//! meets the same failures. Each port counts for itself, in its [`PortRules`].
//!
//! `Documentation/failures.md` describes the text of a scenario.

#![forbid(unsafe_code)]

mod cm;
mod everything;
mod limit;
mod port;
mod rule;
mod scenario;
mod word;

pub use self::cm::{attribute as cm_attribute, MadStart};
pub use self::limit::Limit;
pub use self::port::{Applied, Next, PortRules, RuleCounts, RuleState};
pub use self::rule::{Event, Hook, Rule, What, When};
pub use self::scenario::{Scenario, ScenarioError};
