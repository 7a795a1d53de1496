//! The macro that generates a library interface from a list of signatures.

/// A listed call: its name and its argument types as a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the symbol.
    pub name: &'static str,
    /// The types in Rust syntax with the vendor's names: `*mut hipStream_t`.
    pub arguments: &'static [&'static str],
}

/// Generates a struct with an optional function pointer per signature, and a method of the same
/// name that returns `Result`. If a symbol is missing, only its own call returns an error. All
/// results are 32-bit codes, 0 for success. They are numbers and not a Rust enum, because a code
/// newer than this crate would be undefined behaviour for an enum.
///
/// `describe` is a function `fn(&Self, u32) -> (String, String)`: the name and the meaning of a
/// code.
#[macro_export]
macro_rules! calls {
    (
        $(#[$meta:meta])*
        pub struct $owner:ident, described by $describe:path;
        $($(#[$doc:meta])* fn $name:ident($($arg:ident: $t:ty),* $(,)?);)*
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case, reason = "the vendor's names")]
        #[derive(Clone)]
        pub struct $owner {
            opened: $crate::LoadedLibrary,
            $($name: Option<unsafe extern "C" fn($($t),*) -> u32>,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's names and signatures")]
        impl $owner {
            /// All calls with their argument types.
            pub const SIGNATURES: &'static [$crate::Signature] = &[
                $($crate::Signature { name: stringify!($name), arguments: &[$(stringify!($t)),*] },)*
            ];

            /// Looks up all calls in an opened library.
            #[must_use]
            pub fn over(opened: $crate::LoadedLibrary) -> $owner {
                // SAFETY: signatures are as in the vendor's headers (checked by this crate's
                // tests), with results as numbers.
                unsafe { $owner { $($name: opened.symbol(stringify!($name)),)* opened } }
            }

            /// The opened library, and the paths that were tried before.
            #[must_use]
            pub fn opened(&self) -> &$crate::LoadedLibrary {
                &self.opened
            }

            /// The calls that this library lacks.
            #[must_use]
            pub fn missing(&self) -> Vec<&'static str> {
                [$((stringify!($name), self.$name.is_none())),*].iter().filter(|c| c.1).map(|c| c.0).collect()
            }

            $(
                $(#[$doc])*
                ///
                /// # Errors
                #[doc = concat!("`Code` with the library's answer, `Missing` when the library has no `", stringify!($name), "`.")]
                ///
                /// # Safety
                /// Pointers, handles and sizes must be as the vendor's documentation of the call
                /// requires.
                pub unsafe fn $name(&self, $($arg: $t),*) -> Result<(), $crate::Error> {
                    const CALL: &str = stringify!($name);
                    let Some(call) = self.$name else {
                        return Err($crate::Error::Missing { symbol: CALL, library: self.opened.place.clone() });
                    };
                    // SAFETY: the caller guarantees the requirements of the vendor's documentation.
                    match unsafe { call($($arg),*) } {
                        0 => Ok(()),
                        code => {
                            let (name, says) = $describe(self, code);
                            Err($crate::Error::Code { call: CALL, code, name, says })
                        }
                    }
                }
            )*
        }

        impl std::fmt::Debug for $owner {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($owner), self.opened.place.display())
            }
        }
    };
}
