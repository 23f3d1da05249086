pub struct Setup {}
