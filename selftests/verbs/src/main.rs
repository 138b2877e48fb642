// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of RDMA verbs between two machines.
//!
//! One machine runs `verbs-test server`, the other `verbs-test client SERVER`. The client selects
//! the tests and reports their results as KTAP. Both sides of a test synchronize over a TCP
//! connection. Each test has its own connection, so that a failed test does not affect the next.
//! The tests run on any RoCEv2 device that libibverbs supports.

mod endpoint;
mod fragments;
mod ktap;
mod mappings;
mod pattern;
mod peer;
mod session;
mod tests;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use ktap::Report;
use peer::Peer;
use session::{Role, Session, Settings};
use verbs_test::rdma::{self, Context};

#[derive(Parser)]
#[command(about = "Tests of RDMA verbs between two machines")]
struct Arguments {
    /// Name of the RDMA device.
    #[arg(long, short)]
    device: String,
    /// Index of the GID to use; by default the first RoCE v2 GID of an IPv4 address, else the first
    /// RoCE v2 GID.
    #[arg(long, short)]
    gid_index: Option<u8>,
    /// TCP port of the connection between the two sides.
    #[arg(long, short, default_value_t = 18515)]
    port: u16,
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Runs the server side of the tests that clients request, until it is killed.
    Server,
    /// Runs tests with a server and reports their results as KTAP.
    Client {
        /// Address of the server.
        server: String,
        /// Names of tests, or prefixes of names; by default all but the special tests.
        tests: Vec<String>,
        /// Name of a test to leave out (may be repeated).
        #[arg(long, value_name = "TEST")]
        except: Vec<String>,
        /// Test to report as skipped, because the devices do not support it (may be repeated).
        #[arg(long, value_name = "NAME=REASON")]
        skip: Vec<String>,
        /// File that stops the endless tests when it exists.
        #[arg(long)]
        until: Option<PathBuf>,
        /// Number of rounds of tests that repeat their work.
        #[arg(long, default_value_t = 8)]
        rounds: u32,
        /// The network loses packets, so the NAK of a failed request may get lost.
        #[arg(long)]
        lossy: bool,
    },
    /// Lists the tests.
    List,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("verbs-test: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<bool> {
    if let Action::List = arguments.command {
        for test in tests::ALL {
            println!("{}", test.name);
        }
        return Ok(true);
    }
    let context = Context::open(&arguments.device)?;
    let gid_index = match arguments.gid_index {
        Some(index) => index,
        None => session::find_gid(context.name())?,
    };
    let settings = |role, until, rounds, lossy| Settings {
        role,
        gid_index,
        until,
        rounds,
        lossy,
    };
    match arguments.command {
        Action::List => Ok(true),
        Action::Server => {
            let settings = settings(Role::Passive, None, 0, false);
            serve(&context, arguments.port, &settings)
        }
        Action::Client {
            server,
            tests: wanted,
            except,
            skip,
            until,
            rounds,
            lossy,
        } => {
            let address = (server.as_str(), arguments.port);
            client(
                &context,
                address,
                &Selection { wanted, except },
                &skipped(&skip)?,
                &settings(Role::Active, until, rounds, lossy),
            )
        }
    }
}

/// The tests to run.
struct Selection {
    /// Prefixes of names of tests to run; all but the special tests if empty.
    wanted: Vec<String>,
    /// Names of tests not to run.
    except: Vec<String>,
}

impl Selection {
    fn has(&self, test: &tests::Test) -> bool {
        if self.except.iter().any(|name| name == test.name) {
            return false;
        }
        if self.wanted.is_empty() {
            return !test.special;
        }
        self.wanted
            .iter()
            .any(|name| test.name.starts_with(name.as_str()))
    }
}

/// Names of tests to report as skipped, and the reasons.
fn skipped(options: &[String]) -> Result<Vec<(&str, &str)>> {
    options
        .iter()
        .map(|option| {
            let pair = option.split_once('=');
            let (name, reason) = pair.with_context(|| format!("no reason in {option:?}"))?;
            let known = tests::ALL.iter().any(|test| test.name == name);
            anyhow::ensure!(known, "no test {name}");
            Ok((name, reason))
        })
        .collect()
}

fn client(
    context: &Rc<Context>,
    address: (&str, u16),
    selection: &Selection,
    skipped: &[(&str, &str)],
    settings: &Settings,
) -> Result<bool> {
    let chosen: Vec<&tests::Test> = tests::ALL
        .iter()
        .filter(|test| selection.has(test))
        .collect();
    anyhow::ensure!(!chosen.is_empty(), "no such test; \"list\" names them");
    let mut report = Report::start(chosen.len());
    for test in chosen {
        if let Some((_, reason)) = skipped.iter().find(|(name, _)| *name == test.name) {
            report.skipped(test.name, reason);
            continue;
        }
        let outcome = Peer::connect(address, test.name, settings.rounds).and_then(|peer| {
            let mut session = Session::new(context, peer, settings.clone());
            let result = (test.run)(&mut session);
            session.finish(result)
        });
        report.result(test.name, outcome);
    }
    Ok(report.passed())
}

fn serve(context: &Rc<Context>, port: u16, settings: &Settings) -> Result<bool> {
    let listener =
        TcpListener::bind(("::", port)).with_context(|| format!("listen on port {port}"))?;
    println!("# listening on port {port}");
    for stream in listener.incoming() {
        let (peer, name, rounds) = match Peer::accept(stream?) {
            Ok(accepted) => accepted,
            Err(error) => {
                println!("# connection: {error:#}");
                continue;
            }
        };
        let settings = Settings {
            rounds,
            ..settings.clone()
        };
        let mut session = Session::new(context, peer, settings);
        let result = match tests::ALL.iter().find(|test| test.name == name) {
            Some(test) => (test.run)(&mut session),
            None => Err(anyhow::anyhow!("no test {name}")),
        };
        match session.finish(result) {
            Ok(()) => println!("# {name}: passed"),
            Err(error) => println!("# {name}: {error:#}"),
        }
    }
    Ok(true)
}
