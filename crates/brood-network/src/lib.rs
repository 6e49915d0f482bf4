//! Network namespaces, addresses, policies and name resolution of sandboxes.
