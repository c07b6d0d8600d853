//! A payload of any type, checked throughout: for whoever looks at whole packets (captures, traces, fuzzing) and for the slow types.

use crate::{
    AbortFields, Blocks, ConfirmFields, Content, CookieFields, FEATURE_KEYED, FinFields, Flags, JoinFields, Malformed,
    OpenFields, OpenedFields, RedirectFields, RefusedFields, RstFields, SynFields, Type, VersionFields,
};

/// What a payload holds, by the type of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    Version(VersionFields<'a>),
    Syn(SynFields),
    Cookie(CookieFields),
    /// With the OPEN inside it and the content of its early data; `None` with a key, which hides them.
    Confirm(ConfirmFields<'a>, Option<(OpenFields<'a>, Content<'a>)>),
    Opened(OpenedFields<'a>),
    Refused(RefusedFields),
    Redirect(RedirectFields),
    Data(Content<'a>),
    /// With the content of the early data.
    Open(OpenFields<'a>, Content<'a>),
    Fin(FinFields),
    Abort(AbortFields),
    Control(Blocks<'a>),
    State(Blocks<'a>),
    Pin,
    Rst(RstFields),
    Join(JoinFields),
}

impl<'a> Body<'a> {
    /// The payload of a packet of this type with these flags; if it was sealed, opened.
    ///
    /// # Errors
    /// The payload is not one of this type.
    pub fn parse(kind: Type, flags: Flags, payload: &'a [u8]) -> Result<Body<'a>, Malformed> {
        Ok(match kind {
            Type::Version => Body::Version(VersionFields::parse(payload)?),
            Type::Syn => Body::Syn(SynFields::parse(payload)?),
            Type::Cookie => Body::Cookie(CookieFields::parse(payload)?),
            Type::Confirm => {
                let confirm = ConfirmFields::parse(payload)?;
                let keyed = confirm.syn.features & FEATURE_KEYED != 0;
                Body::Confirm(confirm, if keyed { None } else { Some(parse_open(flags, confirm.rest)?) })
            }
            Type::Opened => Body::Opened(OpenedFields::parse(payload)?),
            Type::Refused => Body::Refused(RefusedFields::parse(payload)?),
            Type::Redirect => Body::Redirect(RedirectFields::parse(payload)?),
            Type::Data => Body::Data(Content::parse(flags, payload)?),
            Type::Open => {
                let (open, early) = parse_open(flags, payload)?;
                Body::Open(open, early)
            }
            Type::Fin => Body::Fin(FinFields::parse(payload)?),
            Type::Abort => Body::Abort(AbortFields::parse(payload)?),
            Type::Control => Body::Control(Blocks::parse(payload)?),
            Type::State => Body::State(Blocks::parse(payload)?),
            Type::Pin if payload.is_empty() => Body::Pin,
            Type::Pin => return Err(Malformed::PayloadLength),
            Type::Rst => Body::Rst(RstFields::parse(payload)?),
            Type::Join => Body::Join(JoinFields::parse(payload)?),
        })
    }
}

fn parse_open(flags: Flags, payload: &[u8]) -> Result<(OpenFields<'_>, Content<'_>), Malformed> {
    let open = OpenFields::parse(payload)?;
    Ok((open, Content::parse(flags, open.early)?))
}
