//! Makes a box: namespaces, cables, addresses, and at last the switch.

use std::fmt::Write;
use std::fs::{self, File};

use rustix::io::FdFlags;

use super::error::{Error, Result};
use super::label::Label;
use super::names::{self, Member, Namespace};
use super::netns::{self, Processor};
use super::plan::{Delayed, Leg, Mechanism, Plan, Segment, Shaper};
use super::switch::{self, delay_end, delay_in, uplink_in, uplink_out};
use super::tools::{Tool, batch};
use super::{delay, down, hysteresis, offloads};

/// The file that gives hosts their names.
const HOSTS_FILE: &str = "hosts";

/// Set before a namespace gets its devices, as they copy the defaults.
const HOST_PARAMETERS: [(&str, &str); 3] = [
    // Addresses are usable at once: nobody else can have them.
    ("ipv6/conf/default/accept_dad", "0"),
    // No router speaks here, and nobody need ask for one: the wire is quiet until a program sends.
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
];

/// Several gateways share the connections, each connection keeps to one.
const ROUTE_PARAMETERS: [(&str, &str); 2] =
    [("ipv4/fib_multipath_hash_policy", "1"), ("ipv6/fib_multipath_hash_policy", "1")];

const GATEWAY_PARAMETERS: [(&str, &str); 2] = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];

/// A switch has no address and says nothing of its own.
const SWITCH_PARAMETERS: [(&str, &str); 2] =
    [("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")];

/// Makes the box. One that cannot be completed is taken away again.
pub fn up(plan: &Plan) -> Result<()> {
    let switch = Namespace::of(&plan.name, Member::Switch);
    if names::boxes()?.iter().any(|found| found.name == plan.name) {
        return Err(Error::Exists { name: plan.name.to_string() });
    }
    // Of two that come at the same time, the kernel lets one have the name.
    batch(Tool::Ip, None, &[format!("netns add {}", switch.name())]).map_err(|error| match error {
        Error::Tool { said, .. } if said.contains("File exists") => Error::Exists { name: plan.name.to_string() },
        other => other,
    })?;
    let lock = lock(&switch)?;
    let made = make(plan, &switch, &lock);
    if made.is_err()
        && let Ok(found) = names::find(&plan.name)
    {
        // What failed first is what the user has to know.
        let _ = down::remove(&found);
        switch.forget_lock();
    }
    made
}

/// Keeps `down` away while the box is made. The programs that do the work inherit the lock: if this process is killed, one of them
/// may go on for a while, and `down` waits for it.
fn lock(switch: &Namespace) -> Result<File> {
    let file = switch.lock()?;
    inherit(&file, true)?;
    Ok(file)
}

fn inherit(file: &File, yes: bool) -> Result<()> {
    let flags = if yes { FdFlags::empty() } else { FdFlags::CLOEXEC };
    rustix::io::fcntl_setfd(file, flags).map_err(Error::system("have a lock inherited or not"))
}

fn make(plan: &Plan, switch: &Namespace, lock: &File) -> Result<()> {
    let plan = plan.clone();
    let plan = match plan.delay {
        Some(_) if !has_queue(switch, "netem delay 1ms")? => plan.without_netem()?,
        _ => plan,
    };
    let plan = &with_shaper(plan, switch)?;
    let namespaces: Vec<_> = plan.members.iter().map(|member| Namespace::of(&plan.name, *member)).collect();
    let adding: Vec<_> = namespaces.iter().map(|namespace| format!("netns add {}", namespace.name())).collect();
    batch(Tool::Ip, None, &adding)?;
    netns::inside(switch, || netns::set_parameters(&SWITCH_PARAMETERS))?;
    for (member, namespace) in plan.members.iter().zip(&namespaces) {
        prepare(plan, *member, namespace)?;
    }
    batch(Tool::Ip, Some(switch), &cables(plan))?;
    for (member, namespace) in plan.members.iter().zip(&namespaces) {
        batch(Tool::Ip, Some(namespace), &addresses(plan, *member))?;
    }
    if plan.wire_frames {
        as_on_a_wire(plan, switch)?;
    }
    batch(Tool::Tc, Some(switch), &switch::commands(plan))?;
    if let (Some(line), Some(delayed)) = (plan.line(), plan.delay) {
        // The one program that is still there afterwards, when `down` is not to wait for it.
        inherit(lock, false)?;
        delay::start(switch, &line, delayed.time)?;
        inherit(lock, true)?;
    }
    let label = Label {
        is_complete: true,
        rate_bits_per_s: plan.port.map(|shape| shape.rate.bits_per_s),
        burst_bytes: plan.port.map(|shape| shape.burst_bytes(plan.shaper)),
        host_rate_bits_per_s: plan.uplink.map(|shape| shape.rate.bits_per_s),
        ..Label::of(switch)?
    };
    label.put(switch)
}

/// The shaper that was asked for, or else the best there is.
fn with_shaper(plan: Plan, switch: &Namespace) -> Result<Plan> {
    let by_netem = matches!(plan.delay, Some(Delayed { by: Mechanism::Netem { .. }, .. }));
    let wanted = match plan.shaper {
        // Netem's way with queues behind it is its own, and tbf is the one that is known to go with it.
        Shaper::Htb if by_netem && !plan.shaper_is_wish => Shaper::Tbf,
        wanted => wanted,
    };
    if plan.port.is_none() || wanted == Shaper::Tbf {
        return Ok(Plan { shaper: Shaper::Tbf, ..plan });
    }
    let missing = if !has_queue(switch, "htb")? {
        "this kernel has no queueing discipline htb (CONFIG_NET_SCH_HTB)"
    } else if batch(Tool::Ip, Some(switch), &[never_merged("lo")]).is_err() {
        "this kernel, or this iproute2, does not know gro_max_size"
    } else if !hysteresis::switch_on(switch)? {
        "the kernel's switch htb_hysteresis cannot be set"
    } else {
        return Ok(plan);
    };
    if plan.shaper_is_wish {
        return Err(Error::NotWithHtb(missing));
    }
    Ok(Plan { shaper: Shaper::Tbf, ..plan })
}

/// Whether the kernel has a queueing discipline, found out where it disturbs nobody.
fn has_queue(switch: &Namespace, queue: &str) -> Result<bool> {
    let added = batch(Tool::Tc, Some(switch), &[format!("qdisc add dev lo root {queue}")]);
    match added {
        Ok(()) => batch(Tool::Tc, Some(switch), &["qdisc del dev lo root".into()]).map(|()| true),
        // "Specified qdisc kind is unknown", "Unknown qdisc"
        Err(Error::Tool { said, .. }) if said.contains("unknown") || said.contains("Unknown") => Ok(false),
        Err(other) => Err(other),
    }
}

/// What a host's namespace needs before it has devices.
fn prepare(plan: &Plan, member: Member, namespace: &Namespace) -> Result<()> {
    netns::inside(namespace, || {
        netns::set_parameters(&HOST_PARAMETERS)?;
        match member {
            Member::Gateway(_) => netns::set_parameters(&GATEWAY_PARAMETERS),
            _ if plan.has_gateways() => netns::set_parameters(&ROUTE_PARAMETERS),
            _ => Ok(()),
        }
    })?;
    let dir = namespace.etc();
    let write = || {
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(HOSTS_FILE), hosts_file(plan, member))
    };
    write().map_err(Error::system(format!("write {}/{HOSTS_FILE}", dir.display())))
}

/// Takes away what [`prepare`] wrote. Other files in that directory are somebody else's, and stay.
pub fn forget_files(namespace: &Namespace) {
    let dir = namespace.etc();
    let _ = fs::remove_file(dir.join(HOSTS_FILE));
    let _ = fs::remove_dir(dir);
}

/// Names and addresses as one host sees them: of a gateway, the leg in its own segment goes first, and is the one that the plain
/// name means.
fn hosts_file(plan: &Plan, member: Member) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    let own = plan.legs_of(member).next().map_or(Segment::Compute, |leg| leg.segment);
    for other in &plan.members {
        let mut legs: Vec<Leg> = plan.legs_of(*other).collect();
        legs.sort_by_key(|leg| leg.segment != own);
        for (index, leg) in legs.iter().enumerate() {
            let name = other.to_string();
            let names = match (index, leg.port() == name) {
                (0, false) => format!("{name} {}", leg.port()),
                (0, true) => name,
                _ => leg.port(),
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{} {names}\n{} {names}", leg.v4(), leg.v6());
        }
    }
    text
}

/// A pair of devices for each leg, one end in the switch, the other in the host; one for each queue of a host; and one for each port to
/// which a process delays frames.
fn cables(plan: &Plan) -> Vec<String> {
    let mtu = plan.mtu;
    let cable = |(number, leg): (u32, &Leg)| {
        let (port, device, namespace) = (leg.port(), leg.device(), Namespace::of(&plan.name, leg.member));
        let index = plan.line().map_or(String::new(), |line| format!("index {} ", line.first_port + number));
        let mut lines = vec![
            format!(
                "link add name {port} {index}mtu {mtu} type veth peer name {device} mtu {mtu} address {} netns {}",
                leg.mac_text(),
                namespace.name()
            ),
            format!("link set dev {port} up alias {}", leg.segment.name()),
        ];
        if plan.uplink.is_some() {
            let (out, inside) = (uplink_out(&port), uplink_in(&port));
            lines.push(format!("link add name {out} mtu {mtu} type veth peer name {inside} mtu {mtu}"));
            lines.extend([out, inside].map(|device| format!("link set dev {device} up")));
        }
        if plan.has_rings() {
            lines.extend(cable_ends(plan, leg).map(|device| never_merged(&device)));
        }
        if let (Some(line), Some(delayed)) = (plan.line(), plan.delay) {
            let (seen, end, index) = (delay_in(&port), delay_end(&port), line.first_device + number);
            lines.push(format!("link add name {seen} index {index} mtu {mtu} type veth peer name {end}"));
            // What `status` shows, whether the process lives or not.
            lines.push(format!("link set dev {seen} up alias {}", delayed.time.as_nanos()));
            lines.push(format!("link set dev {end} up"));
        }
        lines
    };
    ["link set dev lo up".into()].into_iter().chain((0..).zip(&plan.legs).flat_map(cable)).collect()
}

/// Addresses and routes of a host.
fn addresses(plan: &Plan, member: Member) -> Vec<String> {
    let mut lines = vec!["link set dev lo up".to_owned()];
    for leg in plan.legs_of(member) {
        let device = leg.device();
        lines.push(format!("link set dev {device} up"));
        lines.extend(plan.has_rings().then(|| never_merged(device)));
        lines.push(format!("addr add {}/24 dev {device}", leg.v4()));
        lines.push(format!("addr add {}/64 dev {device} nodad", leg.v6()));
    }
    let Member::Host(_) = member else { return lines };
    let Some(own) = plan.legs_of(member).next().map(|leg| leg.segment) else { return lines };
    let gateways: Vec<Leg> = plan.legs_in(own).filter(|leg| matches!(leg.member, Member::Gateway(_))).collect();
    for other in Segment::ALL.into_iter().filter(|segment| *segment != own && !gateways.is_empty()) {
        let hops = |address: &dyn Fn(&Leg) -> String| {
            gateways.iter().map(|leg| format!(" nexthop via {}", address(leg))).collect::<String>()
        };
        lines.push(format!("route add {}{}", other.v4_net(), hops(&|leg| leg.v4().to_string())));
        lines.push(format!("route add {}{}", other.v6_net(), hops(&|leg| leg.v6().to_string())));
    }
    lines
}

/// Frames of at most the MTU, which stay in order. Otherwise frames that a sender hands over on different processors overtake each other, and
/// so do those that a port's timer sends.
fn as_on_a_wire(plan: &Plan, switch: &Namespace) -> Result<()> {
    let processors = Processor::all()?;
    // In turn, so that hosts share them.
    let of = |leg: &Leg| processors[usize::from(leg.number()) % processors.len()];
    let in_order = |devices: Vec<(String, Processor)>| match plan.has_rings() {
        true => devices.iter().try_for_each(|(device, _)| offloads::receive_through_ring(device)),
        false => netns::pin_receiving(&devices),
    };
    let in_switch = |leg: &Leg| cable_ends(plan, leg).map(|device| (device, of(leg))).collect::<Vec<_>>();
    netns::inside(switch, || {
        if plan.has_rings() {
            // A device that takes large segments does not use the ring at its other end.
            let mut ends = plan.legs.iter().flat_map(|leg| cable_ends(plan, leg));
            ends.try_for_each(|device| offloads::switch_off(&device, false))?;
        }
        in_order(plan.legs.iter().flat_map(in_switch).collect())
    })?;
    for member in &plan.members {
        let legs: Vec<Leg> = plan.legs_of(*member).collect();
        netns::inside(&Namespace::of(&plan.name, *member), || {
            legs.iter().try_for_each(|leg| offloads::switch_off(leg.device(), plan.line().is_some()))?;
            in_order(legs.iter().map(|leg| (leg.device().to_owned(), of(leg))).collect())
        })?;
    }
    Ok(())
}

/// The devices of the switch through which a host's frames come and go.
fn cable_ends(plan: &Plan, leg: &Leg) -> impl Iterator<Item = String> {
    let port = leg.port();
    let queue = plan.uplink.map(|_| [uplink_out(&port), uplink_in(&port)]);
    std::iter::once(port).chain(queue.into_iter().flatten())
}

/// The kernel may merge frames that wait in a ring into one as large as this says.
fn never_merged(device: &str) -> String {
    format!("link set dev {device} gro_max_size 1")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::{Delayed, Mechanism, Options};
    use super::*;

    fn plan(gateways: u8) -> Plan {
        let options = Options {
            hosts: 4,
            gateways,
            io_hosts: None,
            rate: None,
            port_buffer_bytes: 131_072,
            host_rate: None,
            shaper: None,
            delay: None,
            mtu: 9000,
            wire_frames: false,
        };
        Plan::new(&"b".parse().unwrap(), &options).unwrap()
    }

    #[test]
    fn a_cable_has_the_mtu_and_the_address_at_both_ends() {
        let lines = cables(&plan(0));
        assert_eq!(
            lines[1..3],
            [
                "link add name h1 mtu 9000 type veth peer name eth0 mtu 9000 address 02:52:57:01:00:01 netns ropeway-b-h1",
                "link set dev h1 up alias compute",
            ]
        );
    }

    #[test]
    fn a_process_that_delays_finds_its_devices_by_their_numbers() {
        let delay = Delayed { time: Duration::from_millis(5), by: Mechanism::Netem { limit_frames: 1 } };
        let plan = Plan { delay: Some(delay), ..plan(1) }.without_netem().unwrap();
        let (lines, line) = (cables(&plan), plan.line().unwrap());
        for (number, port) in (0..).zip(["h1", "h2", "h3", "h4", "g1-compute", "g1-io"]) {
            let cable = format!("link add name {port} index {} mtu 9000 type veth", line.first_port + number);
            assert!(lines.iter().any(|line| line.starts_with(&cable)), "{lines:#?}");
            let pair = format!("link add name {port}-dly index {} mtu 9000 type", line.first_device + number);
            assert!(lines.iter().any(|line| line.starts_with(&pair)), "{lines:#?}");
            assert!(lines.contains(&format!("link set dev {port}-dly up alias 5000000")), "{lines:#?}");
        }
    }

    #[test]
    fn hosts_reach_the_other_segment_through_all_gateways() {
        let lines = addresses(&plan(2), Member::Host(4));
        assert!(lines.contains(&"addr add 10.0.2.4/24 dev eth0".into()), "{lines:#?}");
        assert!(
            lines.contains(&"route add 10.0.1.0/24 nexthop via 10.0.2.201 nexthop via 10.0.2.202".into()),
            "{lines:#?}"
        );
        assert!(lines.contains(&"route add fd00:1::/64 nexthop via fd00:2::201 nexthop via fd00:2::202".into()));
        assert!(!addresses(&plan(0), Member::Host(4)).iter().any(|line| line.starts_with("route")));
        let gateway = addresses(&plan(2), Member::Gateway(1));
        assert!(
            gateway.contains(&"addr add 10.0.2.201/24 dev eth1".into()) && !gateway.iter().any(|l| l.contains("route"))
        );
    }

    #[test]
    fn the_plain_name_of_a_gateway_is_its_near_leg() {
        let near = hosts_file(&plan(1), Member::Host(1));
        assert!(near.contains("10.0.1.201 g1 g1-compute\n") && near.contains("fd00:2::201 g1-io\n"), "{near}");
        let far = hosts_file(&plan(1), Member::Host(4));
        assert!(far.contains("10.0.2.201 g1 g1-io\n") && far.contains("10.0.1.201 g1-compute\n"), "{far}");
        assert!(far.contains("10.0.1.1 h1\nfd00:1::1 h1\n"), "{far}");
    }
}
