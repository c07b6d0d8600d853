//! Linker flags of the preload library.

fn main() {
    // Our own calls of functions that we export are to ours, whoever else defines them too: a hook that ends in another
    // hook must not start again at the front of the search order.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
}
