//! Named points at which a test kills this process.

/// The variable that names the point to die at.
#[cfg(debug_assertions)]
const VARIABLE: &str = "BROOD_FAILURE_POINT";

/// Kills this process as `kill -9` would if the variable
/// `BROOD_FAILURE_POINT` is `name`. Release builds have none of it.
pub(crate) fn reach(name: &str) {
    #[cfg(debug_assertions)]
    if std::env::var_os(VARIABLE).is_some_and(|value| value == name) {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("a process may kill itself");
    }
    #[cfg(not(debug_assertions))]
    let _: &str = name;
}
