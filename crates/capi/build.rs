//! Linker flags of the library.

fn main() {
    // What programs that are linked with -lropeway ask for at run time. The number goes up when a program built against an older one would break.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libropeway.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
