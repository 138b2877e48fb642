// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Options of the kernel that a VM needs.

/// The table, whose head describes the columns and the purposes.
const TABLE: &str = include_str!("../../kernel-needs");

/// An option of the kernel's configuration that a VM needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The name of the option.
    pub option: &'static str,
    /// The module that has the code, if the option's value is `m`.
    pub module: Option<&'static str>,
    /// The reason, for a message.
    pub reason: &'static str,
    purposes: &'static str,
}

impl Need {
    /// The need in a line of the table.
    fn parse(line: &'static str) -> Option<Self> {
        let mut rest = line.trim_start();
        let mut word = || {
            let (word, tail) = rest.split_once(' ')?;
            rest = tail.trim_start();
            Some(word)
        };
        let (option, module, purposes) = (word()?, word()?, word()?);
        option.starts_with("CONFIG_").then_some(Self {
            option,
            module: Some(module).filter(|module| *module != "-"),
            purposes,
            reason: rest,
        })
    }

    /// Whether VMs need the option for a purpose.
    pub fn is_for(&self, purpose: &str) -> bool {
        self.purposes.split(',').any(|one| one == purpose)
    }
}

/// All needs.
pub fn all() -> impl Iterator<Item = Need> {
    TABLE.lines().filter_map(Need::parse)
}

/// The modules that VMs need for one of these purposes, unless the kernel has them in its image.
pub fn modules(purposes: &[&str]) -> Vec<&'static str> {
    let wanted = all().filter(|need| purposes.iter().any(|purpose| need.is_for(purpose)));
    wanted.filter_map(|need| need.module).collect()
}

/// The option to which a module belongs.
pub fn option_of(module: &str) -> Option<&'static str> {
    all()
        .find(|need| need.module == Some(module))
        .map(|need| need.option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_table_is_a_need() {
        let lines = TABLE.lines().filter(|line| line.starts_with("CONFIG_"));
        assert_eq!(all().count(), lines.count());
        let purposes = [
            "early",
            "vm",
            "driver",
            "device",
            "rxe",
            "overlay",
            "compressed",
        ];
        for need in all() {
            let known = need.purposes.split(',').all(|one| purposes.contains(&one));
            assert!(known && !need.reason.is_empty(), "{need:?}");
        }
        assert_eq!(option_of("virtiofs"), Some("CONFIG_VIRTIO_FS"));
        assert_eq!(option_of("-"), None);
    }
}
