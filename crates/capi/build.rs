//! Linker flags of the library.

fn main() {
    // What programs that are linked with -lropeway ask for at run time. The number goes up when a program built against an older one would break.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libropeway.so.0");
    // Its threads, and what it has at the exit of the process and of threads, outlive a dlclose; so does its code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
