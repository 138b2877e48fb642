// SPDX-License-Identifier: GPL-2.0

//! The module as a constant of its type.

use stock::{
    str::CStr,
    types::Opaque,
    ThisModule, //
};

/// Constants that `module!` defines for a module.
pub trait ModuleMetadata {
    /// The module's name.
    const NAME: &'static CStr;

    /// The module's `THIS_MODULE`.
    const THIS_MODULE: ThisModule = {
        extern "C" {
            // Only its address is used.
            static __this_module: Opaque<u8>;
        }

        // SAFETY: All objects that are linked into one module refer to the same symbol, which
        // exists for as long as its code.
        unsafe { ThisModule::from_ptr(__this_module.get().cast()) }
    };
}

/// Defines a module that registers one driver.
#[macro_export]
macro_rules! module_driver {
    (<$generic:ident>, $adapter:ty, { type: $driver:ty, $($rest:tt)* }) => {
        type Adapter<$generic> = $adapter;

        #[$crate::prelude::pin_data]
        struct DriverModule {
            #[pin]
            registration: $crate::driver::Registration<Adapter<$driver>>,
        }

        impl $crate::InPlaceModule for DriverModule {
            fn init(
                module: &'static $crate::ThisModule,
            ) -> impl $crate::prelude::PinInit<Self, $crate::error::Error> {
                $crate::try_pin_init!(Self {
                    registration <- $crate::driver::Registration::new(
                        <Self as $crate::ModuleMetadata>::NAME,
                        module,
                    ),
                })
            }
        }

        $crate::prelude::module! {
            type: DriverModule,
            $($rest)*
        }
    };
}
