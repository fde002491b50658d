package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/devinfo"
	"github.com/verbena-rdma/verbena/rdma"
)

func newDevices() *cobra.Command {
	var (
		name              string
		verbose, jsonForm bool
	)
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the RDMA devices of this machine",
		Args:  atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if verbose && jsonForm {
				return cli.Usagef("-v and --json exclude each other")
			}
			list, err := queryDevices(cmd, name)
			w := cmd.OutOrStdout()
			switch {
			case len(list) == 0 && err != nil:
				return err
			case jsonForm:
				return errors.Join(devinfo.JSON(w, list), err)
			case verbose:
				for i := range list {
					devinfo.Verbose(w, &list[i])
				}
				return err
			}
			return errors.Join(devinfo.Table(w, list), err)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&name, "ib-dev", "d", "", "show only this `device`, by its name or its interface")
	f.BoolVarP(&verbose, "verbose", "v", false, "show everything, as ibv_devinfo -v does")
	f.BoolVar(&jsonForm, "json", false, "print JSON")
	return cmd
}

// queryDevices asks the devices; those that fail are in the error.
func queryDevices(cmd *cobra.Command, name string) ([]devinfo.Device, error) {
	all, err := rdma.Devices(cmd.Context())
	if err != nil {
		return nil, err
	}
	var (
		list  []devinfo.Device
		errs  []error
		names []string
	)
	for _, d := range all {
		names = append(names, d.Name())
		if name != "" && d.Name() != name && d.NetDev() != name {
			continue
		}
		i, err := devinfo.Query(cmd.Context(), d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, i)
	}
	switch {
	case len(all) == 0:
		return nil, cli.Hint(fmt.Errorf("there is no device: %w", syscall.ENODEV), "Bring an interface up and give it an address: ip link set lo up")
	case len(list) == 0 && len(errs) == 0:
		return nil, cli.Hint(fmt.Errorf("there is no device %s: %w", name, syscall.ENODEV), "There are: %s", strings.Join(names, ", "))
	}
	return list, errors.Join(errs...)
}
