package main

import "github.com/spf13/cobra"

func newDemo() *cobra.Command     { return &cobra.Command{Use: "demo"} }
func newDemoPeer() *cobra.Command { return &cobra.Command{Use: "demo-peer", Hidden: true} }
