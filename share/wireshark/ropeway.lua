-- Wireshark dissector of the Ropeway wire protocol, version 1: section 2 of docs/protocol.md.
--
-- Once:    tshark -X lua_script:ropeway.lua -r capture.pcap
-- Always:  put this file into the directory that Help, About, Folders names "Personal Lua Plugins".
--
-- Frames of EtherType 0x88B5 are Ropeway's; over UDP it is recognised by its looks, by the ports in the preferences, or by Decode As.
-- What is malformed carries an expert information "ropeway.malformed.*", by the names of crates/wire's counters.

local ropeway = Proto("ropeway", "Ropeway")

local VERSION = 1
local BASE_HEADER_BYTES, CHANNEL_HEADER_BYTES, SHORT_HEADER_BYTES = 24, 28, 16
local COUNTER_BYTES, TAG_BYTES = 4, 16
local SHIM_BYTES = 12
local MIN_PACKET_BYTES = 256
local ETHERTYPE = 0x88B5
-- Steering of ids that name a port and not an association.
local ANY_STEERING = 0xFFF

local TYPES = {
    [0] = "VERSION", "SYN", "COOKIE", "CONFIRM", "OPENED", "REFUSED", "REDIRECT", "DATA", "OPEN", "FIN", "ABORT", "CONTROL", "STATE", "PIN", "RST", "JOIN",
}
local TYPE = {}
for number, name in pairs(TYPES) do TYPE[name] = number end

local ERROR_CODES = {
    [0] = "CLOSED", "REFUSED", "BUSY", "RESET", "TOO_LONG", "PROTOCOL", "TIMEOUT", "UNKNOWN", "KEY", "VERSION", "CROSSED",
    "LINK_FULL",
}
local MODES = { [0] = "stream", "messages" }
local EXTENTS = { [0] = "no more data from here", "no more data either way" }
local JOIN_STEPS = { [0] = "ask", "cookie", "prove", "done" }
local JOIN_USES = { [0] = "stands by", "bonded" }
local FAMILIES = { [4] = "UDP/IPv4", [6] = "UDP/IPv6" }
local RRQ, CREDIT, HOLD, WANT, RETURN, VOID = 1, 2, 3, 4, 5, 6
local BLOCKS = { "RRQ", "CREDIT", "HOLD", "WANT", "RETURN", "VOID" }
local ENTRY_BYTES = { [RRQ] = 6, [CREDIT] = 10, [HOLD] = 2, [WANT] = 10, [RETURN] = 6, [VOID] = 10 }

-- Fields -----------------------------------------------------------------------------------------------------------------------------

local field = {}
local function define(name, make, ...)
    field[name] = make("ropeway." .. name, ...)
end

define("version", ProtoField.uint8, "Version", base.DEC, nil, 0xF0)
define("type", ProtoField.uint8, "Type", base.DEC, TYPES, 0x0F)
define("short", ProtoField.bool, "Short header")
define("flags", ProtoField.uint8, "Flags", base.HEX)
local FLAGS = {
    { "flags.txs", "TXS: the send queue was empty before", 0x01 },
    { "flags.txf", "TXF: the send queue is empty after", 0x02 },
    { "flags.first", "FIRST: begins a message", 0x04 },
    { "flags.last", "LAST: ends a message", 0x08 },
    { "flags.records", "RECORDS: messages behind each other", 0x10 },
    { "flags.rtx", "RTX: sent before", 0x20 },
    { "flags.phase", "PHASE: key phase", 0x40 },
    { "flags.echo", "ECHO: the echo field is valid", 0x80 },
}
for _, flag in ipairs(FLAGS) do define(flag[1], ProtoField.bool, flag[2], 8, nil, flag[3]) end
define("length", ProtoField.uint16, "Payload length", base.DEC)
define("destination", ProtoField.uint32, "Destination id", base.HEX)
define("id.steering", ProtoField.uint32, "Steering", base.HEX, nil, 0xFFF00000)
define("id.slot", ProtoField.uint32, "Slot", base.HEX, nil, 0x000FFFF0)
define("id.generation", ProtoField.uint32, "Generation", base.DEC, nil, 0x0000000F)
define("id.port", ProtoField.uint32, "Port", base.DEC, nil, 0x000FFFF0)
define("number", ProtoField.uint32, "Number", base.DEC)
define("ack", ProtoField.uint32, "Ack", base.DEC)
define("grant", ProtoField.uint16, "Grant in packets", base.DEC)
define("first_flight", ProtoField.uint8, "First flight in packets", base.DEC)
define("backlog", ProtoField.uint8, "Backlog, coded", base.HEX)
define("backlog_bytes", ProtoField.uint32, "Backlog in bytes", base.DEC)
define("time", ProtoField.uint16, "Time in 4 us", base.DEC)
define("echo", ProtoField.uint16, "Echo in 4 us", base.DEC)
define("channel", ProtoField.uint16, "Channel", base.DEC)
define("back", ProtoField.uint16, "Distance back to the channel's previous number", base.DEC)
define("counter", ProtoField.uint32, "Transmission counter, low half", base.DEC)
define("sealed", ProtoField.bytes, "Encrypted payload")
define("tag", ProtoField.bytes, "Authentication tag")
define("padding", ProtoField.bytes, "Padding")

define("source", ProtoField.uint32, "Source id", base.HEX)
define("nonce", ProtoField.uint64, "Nonce", base.HEX)
define("node", ProtoField.uint64, "Node", base.DEC)
define("destination_port", ProtoField.uint16, "Destination port", base.DEC)
define("source_port", ProtoField.uint16, "Source port", base.DEC)
define("packet_size", ProtoField.uint16, "Packet size in bytes", base.DEC)
define("lowest_version", ProtoField.uint8, "Lowest version", base.DEC)
define("highest_version", ProtoField.uint8, "Highest version", base.DEC)
define("features", ProtoField.uint32, "Features", base.HEX)
define("features.keyed", ProtoField.bool, "Keyed", 32, nil, 0x00000001)
define("cookie.issued", ProtoField.uint32, "Cookie: time of issue", base.DEC)
define("cookie.mac", ProtoField.bytes, "Cookie: MAC")
define("parameters.id", ProtoField.uint32, "Id", base.HEX)
define("parameters.first_number", ProtoField.uint64, "First number", base.DEC)
define("parameters.window", ProtoField.uint32, "Window in bytes", base.DEC)
define("parameters.longest_message", ProtoField.uint32, "Longest message in bytes", base.DEC)
define("reset_token", ProtoField.bytes, "Reset token")
define("join.step", ProtoField.uint8, "Step", base.DEC, JOIN_STEPS)
define("join.use", ProtoField.uint8, "Use of the path", base.DEC, JOIN_USES)
define("join.proof", ProtoField.bytes, "Proof")
define("noise", ProtoField.bytes, "Noise message")
define("error_code", ProtoField.uint16, "Error code", base.DEC, ERROR_CODES)
define("redirect.family", ProtoField.uint16, "Family", base.DEC, FAMILIES)
define("redirect.port", ProtoField.uint16, "Port", base.DEC)
define("redirect.ipv4", ProtoField.ipv4, "Address")
define("redirect.ipv6", ProtoField.ipv6, "Address")
define("spoken", ProtoField.uint8, "Version spoken", base.DEC)
define("reserved", ProtoField.bytes, "Reserved")

define("mode", ProtoField.uint8, "Mode", base.DEC, MODES)
define("extent", ProtoField.uint8, "Extent", base.DEC, EXTENTS)
define("message_length", ProtoField.uint32, "Message length", base.DEC)
define("record", ProtoField.none, "Record")
define("record.length", ProtoField.uint16, "Length", base.DEC)
define("record.repeated", ProtoField.uint8, "More of that length", base.DEC, nil, 0x3F)
define("data", ProtoField.bytes, "Data")

define("block", ProtoField.uint8, "Block", base.DEC, BLOCKS)
define("block.entries", ProtoField.uint8, "Entries", base.DEC)
define("rrq.number", ProtoField.uint32, "First number", base.DEC)
define("rrq.count", ProtoField.uint16, "Count", base.DEC)
define("credit.channel", ProtoField.uint16, "Channel", base.DEC)
define("credit.limit", ProtoField.uint64, "Limit", base.DEC)
define("hold.channel", ProtoField.uint16, "Channel", base.DEC)
define("want.channel", ProtoField.uint16, "Channel", base.DEC)
define("want.limit", ProtoField.uint64, "Limit", base.DEC)
define("return.channel", ProtoField.uint16, "Channel", base.DEC)
define("return.number", ProtoField.uint32, "First number given back", base.DEC)
define("void.channel", ProtoField.uint16, "Channel", base.DEC)
define("void.number", ProtoField.uint32, "First number without anything", base.DEC)
define("void.count", ProtoField.uint16, "Count", base.DEC)
define("void.until", ProtoField.uint16, "Distance to the channel's next number", base.DEC)

define("shim", ProtoField.none, "Gateway shim")
define("shim.congested", ProtoField.bool, "Congested", 8, nil, 0x01)
define("shim.hops", ProtoField.uint8, "Hops left", base.DEC)
define("shim.destination", ProtoField.uint32, "Destination node", base.DEC)
define("shim.source", ProtoField.uint32, "Source node", base.DEC)

local fields = {}
for _, one in pairs(field) do fields[#fields + 1] = one end
ropeway.fields = fields

-- What is malformed ------------------------------------------------------------------------------------------------------------------

local MALFORMED = {
    truncated = "Shorter than a header",
    unknown_version = "Of a version of the protocol that is not known here",
    unexpected_shim = "A gateway's shim behind a gateway's shim",
    length_beyond_packet = "The length in the header is more than what arrived",
    channel_header_missing = "Of a type with a channel, but too short to name one",
    seal_missing = "Too short for counter, payload and tag",
    payload_length = "The payload is shorter or longer than what its type holds",
    packet_size = "Padded to another size than the one it names, or names one that is too small",
    field_value = "A field has a value that does not exist",
    block = "A block of an unknown kind, without entries, or with entries that do not fit or cannot be",
    record = "Records that do not fill the payload exactly, repeat no length, or are not what the flags say",
    message_length = "The length of a message is missing, or no more than what its first packet carries",
    shim = "A gateway's shim with unknown bits",
}
local expert_of, experts = {}, {}
for reason, text in pairs(MALFORMED) do
    expert_of[reason] = ProtoExpert.new("ropeway.malformed." .. reason, text, expert.group.MALFORMED, expert.severity.ERROR)
    experts[#experts + 1] = expert_of[reason]
end
local resent = ProtoExpert.new("ropeway.resent", "This number has been sent before", expert.group.SEQUENCE, expert.severity.NOTE)
experts[#experts + 1] = resent
ropeway.experts = experts

-- Marks the packet; nothing more of it is looked at. Returned by everything that dissects a part: nil means that all was well.
local function malformed(reason, tree, pinfo)
    tree:add_proto_expert_info(expert_of[reason])
    pinfo.cols.info:append(" [malformed: " .. MALFORMED[reason] .. "]")
    return reason
end

-- Preferences ------------------------------------------------------------------------------------------------------------------------

local KEYED_AUTO, KEYED_NEVER, KEYED_ALWAYS = 0, 1, 2
ropeway.prefs.udp_ports = Pref.range("UDP ports", "", "Ports whose packets are Ropeway's even if they do not look like it", 65535)
ropeway.prefs.keyed = Pref.enum(
    "Encrypted", KEYED_AUTO, "Whether DATA to PIN are encrypted. A packet does not say so: automatic looks for a counter and a tag behind the payload.",
    { { 1, "automatic", KEYED_AUTO }, { 2, "never", KEYED_NEVER }, { 3, "always", KEYED_ALWAYS } }, false
)

-- Parts ------------------------------------------------------------------------------------------------------------------------------

local function has_channel(kind) return kind >= TYPE.DATA and kind <= TYPE.ABORT end

-- The name of a value, or its number.
local function named(names, value) return names[value] or tostring(value) end

local function add_id(tree, which, range)
    local id = range:uint()
    local branch = tree:add(field[which], range)
    branch:add(field["id.steering"], range)
    if range:bitfield(0, 12) == ANY_STEERING then
        branch:add(field["id.port"], range)
        branch:append_text(", whoever listens at port " .. range:bitfield(12, 16))
    else
        branch:add(field["id.slot"], range)
        branch:add(field["id.generation"], range)
    end
    return id
end

local function is_own_id(range) return range:bitfield(0, 12) ~= ANY_STEERING end

local function add_bytes(tree, which, range, at, length)
    if length > 0 then tree:add(field[which], range(at, length)) end
end

-- Everything below takes the payload as a Tvb of its own, `at` its first byte that has not been dissected.

-- The prefix at `at`, behind a message of `length` bytes (0: none that may be repeated): its own bytes, the length of what follows, and how often. nil: none that may stand here.
local function record_prefix(payload, at, length)
    local first, left = payload(at, 1):uint(), payload:len() - at
    if first > 0xC0 then
        if length == 0 then return nil end
        return 1, length, first % 64
    end
    local bytes = first < 0x80 and 1 or first < 0xC0 and 2 or 3
    if left < bytes then return nil end
    if bytes == 1 then return 1, first, 1 end
    return bytes, bytes == 2 and payload(at, 2):bitfield(2, 14) or payload(at + 1, 2):uint(), 1
end

local function dissect_records(payload, at, flags, tree, pinfo)
    -- With LAST the first record is the end of a message, with FIRST the last one is the beginning of one, and longer than what is here.
    local ends, begun, length = flags.last, false, 0
    if payload:len() == at then return malformed("record", tree, pinfo) end
    while at < payload:len() do
        local prefix, bytes, count = record_prefix(payload, at, length)
        if not prefix then return malformed("record", tree, pinfo) end
        local repeats = payload(at, 1):uint() > 0xC0
        local here = payload:len() - at - prefix
        begun = here < bytes * count
        if ends and (bytes == 0 or begun) then return malformed("record", tree, pinfo) end
        if begun and (not flags.first or here <= bytes * (count - 1)) then return malformed("record", tree, pinfo) end
        if not begun then here = bytes * count end
        local record = tree:add(field["record"], payload(at, prefix + here))
        record:append_text((repeats and ": " .. count .. " more of " or ends and " that ends a message, " or " of ") .. bytes .. " bytes" .. (begun and ", which go on" or ""))
        if repeats then
            record:add(field["record.repeated"], payload(at, 1))
        else
            record:add(field["record.length"], payload(at, prefix), bytes)
        end
        at = at + prefix
        local rest = at + here
        repeat
            local part = math.min(bytes, rest - at)
            add_bytes(record, "data", payload, at, part)
            at = at + part
        until at == rest
        -- The end of a message is none whose length may be repeated.
        length, ends = ends and 0 or bytes, false
    end
    if flags.first and not begun then return malformed("record", tree, pinfo) end
    return nil
end

local function dissect_content(payload, at, flags, tree, pinfo)
    local length = payload:len() - at
    if flags.records then return dissect_records(payload, at, flags, tree, pinfo) end
    if flags.first and not flags.last then
        if length < 4 or payload(at, 4):uint() <= length - 4 then return malformed("message_length", tree, pinfo) end
        tree:add(field["message_length"], payload(at, 4))
        at, length = at + 4, length - 4
    end
    add_bytes(tree, "data", payload, at, length)
end

local function dissect_open(payload, at, flags, tree, pinfo)
    if payload:len() - at < 8 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["destination_port"], payload(at, 2))
    tree:add(field["source_port"], payload(at + 2, 2))
    tree:add(field["mode"], payload(at + 4, 1))
    tree:add(field["reserved"], payload(at + 5, 3))
    local mode = payload(at + 4, 1):uint()
    pinfo.cols.info:append(", " .. named(MODES, mode))
    if not MODES[mode] then return malformed("field_value", tree, pinfo) end
    return dissect_content(payload, at + 8, flags, tree, pinfo)
end

-- The 32 bytes that SYN and CONFIRM begin with; second, whether a key is asked for.
local function dissect_syn_fields(payload, tree, pinfo)
    if payload:len() < 32 then return malformed("payload_length", tree, pinfo) end
    add_id(tree, "source", payload(0, 4))
    tree:add(field["nonce"], payload(4, 8))
    tree:add(field["node"], payload(12, 8))
    tree:add(field["destination_port"], payload(20, 2))
    tree:add(field["source_port"], payload(22, 2))
    tree:add(field["packet_size"], payload(24, 2))
    tree:add(field["lowest_version"], payload(26, 1))
    tree:add(field["highest_version"], payload(27, 1))
    tree:add(field["features"], payload(28, 4)):add(field["features.keyed"], payload(28, 4))
    pinfo.cols.info:append(string.format(", port %d > %d, packets of %d bytes", payload(22, 2):uint(), payload(20, 2):uint(), payload(24, 2):uint()))
    local speaks = payload(26, 1):uint() <= VERSION and payload(27, 1):uint() >= VERSION
    if not is_own_id(payload(0, 4)) or not speaks then return malformed("field_value", tree, pinfo) end
    if payload(24, 2):uint() < MIN_PACKET_BYTES then return malformed("packet_size", tree, pinfo) end
    return nil, payload(31, 1):bitfield(7, 1) == 1
end

local function dissect_padded(payload, at, packet_size, tree, pinfo)
    add_bytes(tree, "padding", payload, at, payload:len() - at)
    if BASE_HEADER_BYTES + payload:len() ~= packet_size then return malformed("packet_size", tree, pinfo) end
end

local function dissect_cookie(payload, at, tree)
    tree:add(field["cookie.issued"], payload(at, 4))
    tree:add(field["cookie.mac"], payload(at + 4, 16))
end

local function dissect_parameters(payload, at, tree, pinfo)
    if payload:len() - at < 36 then return malformed("payload_length", tree, pinfo) end
    local branch = tree:add(payload(at, 36), "Parameters")
    add_id(branch, "parameters.id", payload(at, 4))
    branch:add(field["parameters.first_number"], payload(at + 4, 8))
    branch:add(field["parameters.window"], payload(at + 12, 4))
    branch:add(field["parameters.longest_message"], payload(at + 16, 4))
    branch:add(field["reset_token"], payload(at + 20, 16))
    if not is_own_id(payload(at, 4)) then return malformed("field_value", tree, pinfo) end
end

local function add_error_code(range, tree, pinfo)
    tree:add(field["error_code"], range)
    pinfo.cols.info:append(", " .. named(ERROR_CODES, range:uint()))
end

local function add_entry(kind, range, tree)
    if kind == RRQ then
        tree:add(field["rrq.number"], range(0, 4))
        tree:add(field["rrq.count"], range(4, 2))
        return range(4, 2):uint() > 0
    end
    local name = BLOCKS[kind]:lower()
    tree:add(field[name .. ".channel"], range(0, 2))
    if kind == CREDIT or kind == WANT then tree:add(field[name .. ".limit"], range(2, 8)) end
    if kind == RETURN or kind == VOID then tree:add(field[name .. ".number"], range(2, 4)) end
    if kind ~= VOID then return true end
    local count, until_next = range(6, 2), range(8, 2)
    tree:add(field["void.count"], count)
    tree:add(field["void.until"], until_next)
    return count:uint() > 0 and until_next:uint() >= count:uint()
end

local function dissect_blocks(payload, _, tree, pinfo)
    local at, seen = 0, {}
    while at < payload:len() do
        if payload:len() - at < 2 then return malformed("block", tree, pinfo) end
        local kind, entries = payload(at, 1):uint(), payload(at + 1, 1):uint()
        local each = ENTRY_BYTES[kind]
        if not each or entries == 0 or payload:len() - at - 2 < entries * each then return malformed("block", tree, pinfo) end
        local branch = tree:add(field["block"], payload(at, 1))
        branch:set_len(2 + entries * each)
        branch:add(field["block.entries"], payload(at + 1, 1))
        for i = 0, entries - 1 do
            if not add_entry(kind, payload(at + 2 + i * each, each), branch) then return malformed("block", tree, pinfo) end
        end
        seen[#seen + 1] = BLOCKS[kind] .. " " .. entries
        at = at + 2 + entries * each
    end
    if #seen > 0 then pinfo.cols.info:append(" (" .. table.concat(seen, ", ") .. ")") end
end

-- Payloads by type -------------------------------------------------------------------------------------------------------------------

-- In place of a Tvb, of which there is none without bytes.
local NOTHING = { len = function() return 0 end }

local dissect = {}

dissect[TYPE.VERSION] = function(payload, _, tree, pinfo)
    if payload:len() < 9 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["nonce"], payload(0, 8))
    for at = 8, payload:len() - 1 do tree:add(field["spoken"], payload(at, 1)) end
end

dissect[TYPE.SYN] = function(payload, _, tree, pinfo)
    local bad = dissect_syn_fields(payload, tree, pinfo)
    return bad or dissect_padded(payload, 32, payload(24, 2):uint(), tree, pinfo)
end

dissect[TYPE.COOKIE] = function(payload, _, tree, pinfo)
    if payload:len() < 32 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["nonce"], payload(0, 8))
    tree:add(field["packet_size"], payload(8, 2))
    tree:add(field["reserved"], payload(10, 2))
    dissect_cookie(payload, 12, tree)
    if payload(8, 2):uint() < MIN_PACKET_BYTES then return malformed("packet_size", tree, pinfo) end
    return dissect_padded(payload, 32, payload(8, 2):uint(), tree, pinfo)
end

dissect[TYPE.CONFIRM] = function(payload, flags, tree, pinfo)
    local bad, keyed = dissect_syn_fields(payload, tree, pinfo)
    if bad then return bad end
    if payload:len() < 52 then return malformed("payload_length", tree, pinfo) end
    dissect_cookie(payload, 32, tree)
    bad = dissect_parameters(payload, 52, tree, pinfo)
    if bad then return bad end
    if keyed then return add_bytes(tree, "noise", payload, 88, payload:len() - 88) end
    local rest = payload(88, payload:len() - 88)
    return dissect_open(payload, 88, flags, tree:add(rest, "OPEN of channel 0"), pinfo)
end

-- Without a key there are parameters and nothing behind them; a Noise message is longer.
dissect[TYPE.OPENED] = function(payload, _, tree, pinfo)
    if payload:len() < 8 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["nonce"], payload(0, 8))
    if payload:len() == 44 then return dissect_parameters(payload, 8, tree, pinfo) end
    add_bytes(tree, "noise", payload, 8, payload:len() - 8)
end

dissect[TYPE.REFUSED] = function(payload, _, tree, pinfo)
    if payload:len() ~= 10 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["nonce"], payload(0, 8))
    add_error_code(payload(8, 2), tree, pinfo)
end

dissect[TYPE.REDIRECT] = function(payload, _, tree, pinfo)
    if payload:len() ~= 28 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["nonce"], payload(0, 8))
    tree:add(field["redirect.family"], payload(8, 2))
    tree:add(field["redirect.port"], payload(10, 2))
    local family = payload(8, 2):uint()
    if family == 4 then
        tree:add(field["redirect.ipv4"], payload(12, 4))
        tree:add(field["reserved"], payload(16, 12))
    elseif family == 6 then
        tree:add(field["redirect.ipv6"], payload(12, 16))
    else
        return malformed("field_value", tree, pinfo)
    end
end

dissect[TYPE.DATA] = function(payload, flags, tree, pinfo) return dissect_content(payload, 0, flags, tree, pinfo) end

dissect[TYPE.OPEN] = function(payload, flags, tree, pinfo)
    if payload:len() >= 4 then pinfo.cols.info:append(string.format(", port %d > %d", payload(2, 2):uint(), payload(0, 2):uint())) end
    return dissect_open(payload, 0, flags, tree, pinfo)
end

dissect[TYPE.FIN] = function(payload, _, tree, pinfo)
    if payload:len() ~= 2 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["extent"], payload(0, 1))
    tree:add(field["reserved"], payload(1, 1))
    local extent = payload(0, 1):uint()
    pinfo.cols.info:append(", " .. named(EXTENTS, extent))
    if not EXTENTS[extent] then return malformed("field_value", tree, pinfo) end
end

dissect[TYPE.ABORT] = function(payload, _, tree, pinfo)
    if payload:len() ~= 2 then return malformed("payload_length", tree, pinfo) end
    add_error_code(payload(0, 2), tree, pinfo)
end

dissect[TYPE.CONTROL] = dissect_blocks
dissect[TYPE.STATE] = dissect_blocks

dissect[TYPE.PIN] = function(payload, _, tree, pinfo)
    if payload:len() > 0 then return malformed("payload_length", tree, pinfo) end
end

dissect[TYPE.RST] = function(payload, _, tree, pinfo)
    if payload:len() ~= 18 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["reset_token"], payload(0, 16))
    add_error_code(payload(16, 2), tree, pinfo)
end

dissect[TYPE.JOIN] = function(payload, _, tree, pinfo)
    if payload:len() < 48 then return malformed("payload_length", tree, pinfo) end
    tree:add(field["join.step"], payload(0, 1))
    tree:add(field["join.use"], payload(1, 1))
    tree:add(field["packet_size"], payload(2, 2))
    tree:add(field["nonce"], payload(4, 8))
    dissect_cookie(payload, 12, tree)
    tree:add(field["join.proof"], payload(32, 16))
    local step, use = payload(0, 1):uint(), payload(1, 1):uint()
    pinfo.cols.info:append(", " .. named(JOIN_STEPS, step))
    if not JOIN_STEPS[step] or not JOIN_USES[use] then return malformed("field_value", tree, pinfo) end
    if payload(2, 2):uint() < MIN_PACKET_BYTES then return malformed("packet_size", tree, pinfo) end
    if step < 2 then return dissect_padded(payload, 48, payload(2, 2):uint(), tree, pinfo) end
    if payload:len() > 48 then return malformed("payload_length", tree, pinfo) end
end

-- Packets ----------------------------------------------------------------------------------------------------------------------------

-- The type of a packet of this version, and whether its header is the short one.
local function type_of(version, low)
    if version == VERSION and low == TYPE.VERSION then return TYPE.DATA, true end
    return low, false
end

-- Bytes of the header by type.
local function header_bytes(kind, is_short)
    return is_short and SHORT_HEADER_BYTES or has_channel(kind) and CHANNEL_HEADER_BYTES or BASE_HEADER_BYTES
end

-- Whether there is a counter and a tag around the payload: they are there, and are more than the zeros that pad short Ethernet frames.
local function is_sealed(packet, kind, is_short, length)
    if kind < TYPE.DATA or kind > TYPE.PIN or ropeway.prefs.keyed == KEYED_NEVER then return false end
    if ropeway.prefs.keyed == KEYED_ALWAYS then return true end
    local at = header_bytes(kind, is_short) + length
    local more = packet:len() - at
    if more < COUNTER_BYTES + TAG_BYTES then return false end
    for i = at, at + COUNTER_BYTES + TAG_BYTES - 1 do
        if packet(i, 1):uint() ~= 0 then return true end
    end
    return false
end

local function backlog_bytes(coded)
    local exponent, mantissa = math.floor(coded / 16), coded % 16
    if exponent == 0 then return mantissa * 64 end
    return (16 + mantissa) * 2 ^ (exponent - 1) * 64
end

local function dissect_header(packet, kind, is_short, tree)
    tree:add(field["version"], packet(0, 1))
    -- What is DATA is found as such, whichever header it has.
    tree:add(field["type"], packet(0, 1), kind)
    if is_short then tree:add(field["short"], packet(0, 1), true):set_generated() end
    local flags, set = {}, {}
    local branch = tree:add(field["flags"], packet(1, 1))
    for bit, flag in ipairs(FLAGS) do
        branch:add(field[flag[1]], packet(1, 1))
        local name = flag[1]:match("%.(%w+)$")
        flags[name] = packet(1, 1):bitfield(8 - bit, 1) == 1
        if flags[name] then set[#set + 1] = name:upper() end
    end
    if #set > 0 then branch:append_text(" (" .. table.concat(set, ", ") .. ")") end
    tree:add(field["length"], packet(2, 2))
    add_id(tree, "destination", packet(4, 4))
    tree:add(field["number"], packet(8, 4))
    if is_short then
        tree:add(field["channel"], packet(12, 2))
        tree:add(field["back"], packet(14, 2))
        return flags, set
    end
    tree:add(field["ack"], packet(12, 4))
    tree:add(field["grant"], packet(16, 2))
    tree:add(field["first_flight"], packet(18, 1))
    tree:add(field["backlog"], packet(19, 1))
    tree:add(field["backlog_bytes"], packet(19, 1), backlog_bytes(packet(19, 1):uint())):set_generated()
    tree:add(field["time"], packet(20, 2))
    tree:add(field["echo"], packet(22, 2))
    if has_channel(kind) and packet:len() >= CHANNEL_HEADER_BYTES then
        tree:add(field["channel"], packet(24, 2))
        tree:add(field["back"], packet(26, 2))
    end
    return flags, set
end

local function summarise(packet, kind, is_short, set, pinfo)
    local text = TYPES[kind]
    if has_channel(kind) then
        text = string.format("%s channel %d, number %d", text, packet(is_short and 12 or 24, 2):uint(), packet(8, 4):uint())
    end
    if kind >= TYPE.DATA and kind <= TYPE.PIN and not is_short then
        text = string.format("%s, ack %d, grant %d", text, packet(12, 4):uint(), packet(16, 2):uint())
    end
    if #set > 0 then text = text .. " [" .. table.concat(set, " ") .. "]" end
    local length = packet(2, 2):uint()
    if length > 0 then text = text .. ", " .. length .. " bytes" end
    pinfo.cols.info:append(text)
end

local function dissect_packet(packet, pinfo, tree)
    if packet:len() < 1 then return malformed("truncated", tree, pinfo) end
    local version, low = packet(0, 1):bitfield(0, 4), packet(0, 1):bitfield(4, 4)
    local kind, is_short = type_of(version, low)
    if packet:len() < (is_short and SHORT_HEADER_BYTES or BASE_HEADER_BYTES) then return malformed("truncated", tree, pinfo) end
    if version == 15 then return malformed("unexpected_shim", tree, pinfo) end
    local is_version = version == 0 and kind == TYPE.VERSION
    if not is_version and version ~= VERSION then
        tree:add(field["version"], packet(0, 1))
        return malformed("unknown_version", tree, pinfo)
    end
    local flags, set = dissect_header(packet, kind, is_short, tree)
    local at, length = header_bytes(kind, is_short), packet(2, 2):uint()
    if packet:len() < at then return malformed("channel_header_missing", tree, pinfo) end
    summarise(packet, kind, is_short, set, pinfo)
    if flags.rtx then tree:add_proto_expert_info(resent) end
    if packet:len() - at < length then return malformed("length_beyond_packet", tree, pinfo) end
    if is_sealed(packet, kind, is_short, length) then
        if packet:len() - at < COUNTER_BYTES + length + TAG_BYTES then return malformed("seal_missing", tree, pinfo) end
        tree:add(field["counter"], packet(at, COUNTER_BYTES))
        add_bytes(tree, "sealed", packet, at + COUNTER_BYTES, length)
        tree:add(field["tag"], packet(at + COUNTER_BYTES + length, TAG_BYTES))
        pinfo.cols.info:append(", encrypted")
        return nil
    end
    return dissect[kind](length > 0 and packet(at, length):tvb() or NOTHING, flags, tree, pinfo)
end

local function dissect_shim(tvb, pinfo, tree)
    if tvb:len() < SHIM_BYTES then return malformed("truncated", tree, pinfo) end
    local branch = tree:add(field["shim"], tvb(0, SHIM_BYTES))
    branch:add(field["shim.congested"], tvb(0, 1))
    branch:add(field["shim.hops"], tvb(1, 1))
    branch:add(field["reserved"], tvb(2, 2))
    branch:add(field["shim.destination"], tvb(4, 4))
    branch:add(field["shim.source"], tvb(8, 4))
    pinfo.cols.info:append(string.format("node %d > node %d: ", tvb(8, 4):uint(), tvb(4, 4):uint()))
    if tvb(0, 1):bitfield(4, 3) ~= 0 then return malformed("shim", tree, pinfo) end
end

function ropeway.dissector(tvb, pinfo, root)
    pinfo.cols.protocol = "Ropeway"
    pinfo.cols.info = ""
    local tree = root:add(ropeway, tvb())
    if tvb:len() > 0 and tvb(0, 1):bitfield(0, 4) == 15 then
        if dissect_shim(tvb, pinfo, tree) then return tvb:len() end
        if tvb:len() == SHIM_BYTES then
            malformed("truncated", tree, pinfo)
            return tvb:len()
        end
        tvb = tvb(SHIM_BYTES):tvb()
    end
    dissect_packet(tvb, pinfo, tree)
    return tvb:len()
end

-- How it is found --------------------------------------------------------------------------------------------------------------------

-- UDP does not pad: what looks like a header is believed if it accounts for every byte.
local function looks_like_packet(tvb)
    if tvb:len() < SHORT_HEADER_BYTES then return false end
    local version = tvb(0, 1):bitfield(0, 4)
    local kind, is_short = type_of(version, tvb(0, 1):bitfield(4, 4))
    if tvb:len() < header_bytes(kind, is_short) then return false end
    if version == 0 then
        if kind ~= TYPE.VERSION or tvb(1, 1):uint() ~= 0 or tvb(2, 2):uint() < 9 then return false end
        for at = 8, BASE_HEADER_BYTES - 1 do
            if tvb(at, 1):uint() ~= 0 then return false end
        end
    elseif version ~= VERSION then
        return false
    end
    if (kind == TYPE.SYN or kind == TYPE.CONFIRM) and is_own_id(tvb(4, 4)) then return false end
    local open = header_bytes(kind, is_short) + tvb(2, 2):uint()
    local sealed = kind >= TYPE.DATA and kind <= TYPE.PIN and tvb:len() == open + COUNTER_BYTES + TAG_BYTES
    return tvb:len() == open or sealed
end

local function looks_like_ropeway(tvb)
    if tvb:len() > SHIM_BYTES and tvb(0, 1):bitfield(0, 7) == 0x78 then return looks_like_packet(tvb(SHIM_BYTES):tvb()) end
    return looks_like_packet(tvb)
end

ropeway:register_heuristic("udp", function(tvb, pinfo, root)
    if not looks_like_ropeway(tvb) then return false end
    ropeway.dissector(tvb, pinfo, root)
    -- What follows between the same two ends is Ropeway's too, well formed or not.
    pinfo.conversation = ropeway
    return true
end)

DissectorTable.get("ethertype"):add(ETHERTYPE, ropeway)
local udp_port = DissectorTable.get("udp.port")
udp_port:add_for_decode_as(ropeway)

local udp_ports = ropeway.prefs.udp_ports
function ropeway.prefs_changed()
    if udp_ports == ropeway.prefs.udp_ports then return end
    if udp_ports ~= "" then udp_port:remove(udp_ports, ropeway) end
    udp_ports = ropeway.prefs.udp_ports
    if udp_ports ~= "" then udp_port:add(udp_ports, ropeway) end
end
