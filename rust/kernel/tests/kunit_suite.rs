// SPDX-License-Identifier: GPL-2.0

//! Tests that need no device. In the kernel's tree they are KUnit suites. Out of the tree, a module
//! runs them, since most kernels have no KUnit.

#[cfg(OUT_OF_TREE)]
use kernel::prelude::*;

/// A test. It fails if `run` returns an error.
#[cfg(OUT_OF_TREE)]
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its code.
    pub(crate) run: fn() -> Result,
}

/// Declares the tests of a module: out of the tree `CASES`, in the tree a KUnit suite.
macro_rules! suite {
    ($name:ident { $($(#[$meta:meta])* fn $test:ident() $body:block)* }) => {
        $(
            $(#[$meta])*
            fn $test() -> kernel::error::Result {
                $body
                Ok(())
            }
        )*

        #[cfg(OUT_OF_TREE)]
        pub(crate) const CASES: &[$crate::kunit_suite::Case] = &[
            $($crate::kunit_suite::Case { name: stringify!($test), run: $test },)*
        ];

        #[cfg(not(OUT_OF_TREE))]
        #[kernel::macros::kunit_tests($name)]
        mod kunit {
            $(
                #[test]
                fn $test() -> kernel::error::Result {
                    super::$test()
                }
            )*
        }
    };
}

/// Logs where a test has failed. The macros of the log have `unsafe` blocks, which would be unused
/// within an `unsafe` block of a test, so this is a function.
pub(crate) fn log_failure(file: &str, line: u32, condition: &str) {
    kernel::pr_err!("{}:{}: {}\n", file, line, condition);
}

/// Ends a test unless a condition holds.
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            $crate::kunit_suite::log_failure(file!(), line!(), stringify!($condition));
            return Err(kernel::error::code::EINVAL);
        }
    };
}

/// Runs tests and reports them as KTAP. Returns how many failed.
#[cfg(OUT_OF_TREE)]
pub(crate) fn run(suites: &[(&str, &[Case])]) -> usize {
    let count: usize = suites.iter().map(|(_, cases)| cases.len()).sum();
    pr_info!("1..{}\n", count);
    let all = suites
        .iter()
        .flat_map(|(name, cases)| cases.iter().map(move |case| (name, case)));
    let mut failed = 0;
    for ((suite, case), number) in all.zip(1..) {
        match (case.run)() {
            Ok(()) => pr_info!("ok {} {}.{}\n", number, suite, case.name),
            Err(error) => {
                failed += 1;
                pr_info!("not ok {} {}.{} # {:?}\n", number, suite, case.name, error);
            }
        }
    }
    failed
}
