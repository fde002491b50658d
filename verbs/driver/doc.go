// Package driver is the seam between package verbs and the devices behind it,
// as database/sql/driver is for databases. A provider implements these small
// interfaces. Applications use package verbs, whose work requests and completions
// (verbs.SendWR, verbs.SGE, verbs.WC and others) are the types of this package under
// another name, so that nothing is copied on the way.
//
// Rules for providers: every error matches an errno with errors.Is; a failed
// call changes nothing; Close and Destroy calls may be repeated; the slices
// passed to PostSend, PostRecv and Poll belong to the caller and are not kept.
// An ability that a provider does not have is absent as a method (the small
// extra interfaces below) and verbs reports EOPNOTSUPP.
package driver
