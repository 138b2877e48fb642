// SPDX-License-Identifier: GPL-2.0

//! Tests that need no device. They are KUnit suites if the kernel has KUnit; otherwise this module
//! runs them.

use kernel::prelude::*;

/// A test. It fails if `run` returns an error.
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its code.
    pub(crate) run: fn() -> Result,
}

/// Declares the tests of a module: `CASES`, and a KUnit suite of that name.
macro_rules! suite {
    ($name:ident { $($(#[$meta:meta])* fn $test:ident() $body:block)* }) => {
        $(
            $(#[$meta])*
            fn $test() -> kernel::error::Result {
                $body
                Ok(())
            }
        )*

        pub(crate) const CASES: &[$crate::suite::Case] = &[
            $($crate::suite::Case { name: stringify!($test), run: $test },)*
        ];

        #[cfg(CONFIG_KUNIT = "y")]
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

/// Ends a test unless a condition holds.
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            kernel::pr_err!("{}:{}: {}\n", file!(), line!(), stringify!($condition));
            return Err(kernel::error::code::EINVAL);
        }
    };
}

/// Runs tests and reports them as KTAP. Returns how many failed.
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
