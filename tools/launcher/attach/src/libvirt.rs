// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! XML for libvirt. libvirt supports neither the device nor the network backend, but passes
//! arguments on to QEMU.

use crate::{Argument, Backend};

/// XML of a domain with memory that the daemon can map, and these arguments for QEMU. The user
/// merges it into a complete domain.
pub fn domain(backend: &Backend, arguments: &[Argument]) -> String {
    let memory = match backend {
        Backend::Memfd => "    <source type='memfd'/>\n",
        Backend::HugePages => {
            "    <hugepages><page size='2' unit='MiB'/></hugepages>\n    <source type='memfd'/>\n"
        }
        // libvirt uses one directory for all domains: memory_backing_dir in its qemu.conf.
        Backend::Directory(_) => "    <source type='file'/>\n",
    };
    let words: Vec<_> = arguments
        .concat()
        .iter()
        .map(|word| format!("    <qemu:arg value='{}'/>\n", escape(word)))
        .collect();
    let words = words.concat();
    format!(
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  \
         <memoryBacking>\n{memory}    <access mode='shared'/>\n  </memoryBacking>\n  \
         <qemu:commandline>\n{words}  </qemu:commandline>\n</domain>"
    )
}

/// Escapes text for an XML attribute in single quotes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argument;

    #[test]
    fn arguments_are_escaped_and_memory_is_shared() {
        let arguments = [argument("-device", "a'b<c&d\"e")];
        let xml = domain(&Backend::HugePages, &arguments);
        assert!(xml.contains("<qemu:arg value='-device'/>"), "{xml}");
        assert!(
            xml.contains("<qemu:arg value='a&apos;b&lt;c&amp;d\"e'/>"),
            "{xml}"
        );
        assert!(xml.contains("<access mode='shared'/>"), "{xml}");
        assert!(xml.contains("<page size='2' unit='MiB'/>"), "{xml}");
    }
}
